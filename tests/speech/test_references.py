"""Transcripts are those of ``WhisperForConditionalGeneration.generate``, window by window."""

import dataclasses
import itertools
import zlib

import numpy as np
import pytest
from small_whisper import LANGUAGES, RATE, sound

NO_THRESHOLDS = {"compression_ratio": None, "log_prob": None, "no_speech": None}
PLAIN = {"method": "autoregressive", "temperatures": (0.0,)}
SOUNDS = {"long": sound(3.3), "other": sound(2.6, 1), "loud": 3 * sound(2.1, 2)}
PROMPT = "the lazy dog"


def windows_of(segments):
    """The outputs that transformers' segments were cut from: tokens and log-probabilities."""
    import torch

    found, last = [], None
    for each in segments:
        result = each["result"]
        if result is last:
            continue
        last = result
        scores = torch.log_softmax(torch.stack(tuple(result["scores"])).float(), -1)
        tokens = result["sequences"][-len(scores) :]
        found.append((tokens.numpy(), scores[range(len(tokens)), tokens].numpy()))
    return found


def check(both, samples, ours, theirs):
    """One transcript of specdec, one of transformers, both in full."""
    model = both.pair.target.model
    eos, first = model.eos_ids[0], both.pair.listening.tokens.first_timestamp
    with_text = [each for each in theirs if (each["tokens"] < eos).any()]
    assert len(ours.segments) == len(with_text)
    for mine, its in zip(ours.segments, with_text, strict=True):
        tokens = its["tokens"].numpy()
        np.testing.assert_array_equal(mine.tokens, tokens[tokens < eos])
        found = mine.start, mine.end
        np.testing.assert_allclose(found, (float(its["start"]), float(its["end"])), atol=1e-6)
    outputs = windows_of(theirs)
    assert len(ours.windows) == len(outputs)
    for heard, (tokens, log_probs) in zip(ours.windows, outputs, strict=True):
        np.testing.assert_array_equal(heard.tokens, tokens[: len(heard.tokens)])
        assert tokens[len(heard.tokens) :].tolist() in ([], [eos])
        np.testing.assert_allclose(heard.log_probs, log_probs[: len(heard.tokens)], atol=1e-4)
        assert heard.mean_log_prob == pytest.approx(log_probs.mean(), abs=1e-4)
        raw = tokens.astype("<u2").tobytes()
        assert heard.compression_ratio == pytest.approx(len(raw) / len(zlib.compress(raw)))
    return [(tokens >= first).tolist() for tokens, _ in outputs]


@pytest.mark.parametrize("mels", [80, 128])
def test_features(mels, tmp_path, both):
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=1)
    listening = dataclasses.replace(both.pair.listening, extractor=extractor)
    for samples in (sound(0.3), sound(1), sound(1 + 1 / RATE), sound(2.71)):
        found = listening.features(samples)
        whole = np.pad(samples, (0, max(0, RATE - len(samples))))
        expected = extractor._np_extract_fbank_features(whole[None], "cpu")[0].T
        assert found.shape == (max(100, len(samples) // 160), mels)
        # 1e-5 of a feature is 9e-5 of its power; a transform's rounding is of a frame's loudest.
        found, expected = (10.0 ** (4 * each.astype(np.float64) - 4) for each in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=9e-5, atol=5e-7 * expected.max())


def test_segments_of_sequential_windows(both):
    """Without thresholds; of windows with pairs of timestamps and without."""
    pairs = set()
    for samples in SOUNDS.values():
        ours = both.pair.transcribe(samples, RATE, **PLAIN, **NO_THRESHOLDS)
        theirs = both.expected(samples, task="transcribe")
        for times in check(both, samples, ours, theirs):
            pairs.add(any(a and b for a, b in itertools.pairwise(times)))
    assert pairs == {False, True}


@pytest.mark.parametrize("language", [None, "de", "German"])
@pytest.mark.parametrize("timestamps", [False, True])
def test_short_recordings(both, language, timestamps):
    """One window: filled up with silence; tasks, languages and their detection."""
    samples, task = sound(0.62, 3), "translate" if language == "de" else "transcribe"
    ours = both.pair.transcribe(
        samples, RATE, language=language, task=task, timestamps=timestamps,
        **PLAIN | {"max_window_tokens": 12}, **NO_THRESHOLDS,
    )  # fmt: skip
    features = both.features(samples)
    result = both.model.generate(
        features, return_timestamps=timestamps, language=language and language.lower(), task=task,
        max_new_tokens=12, return_dict_in_generate=True, output_scores=True, return_segments=True,
        force_unique_generate_call=not timestamps,  # Its output may have timestamps all the same.
    )  # fmt: skip
    if timestamps:
        check(both, samples, ours, result["segments"][0])
    else:
        tokens = result["sequences"][0, -len(result["scores"]) :]
        heard = ours.windows[0].tokens
        np.testing.assert_array_equal(heard, tokens[: len(heard)])
        assert [(each.start, each.end) for each in ours.segments] == [(0.0, 0.62)]
    if language is None:
        ids = both.model.generation_config.lang_to_id
        detected = int(both.model.detect_language(features, num_segment_frames=100))
        assert ids[f"<|{ours.language}|>"] == detected
        assert 1 / len(LANGUAGES) <= ours.language_probability <= 1
    else:
        assert (ours.language, ours.language_probability) == ("de", None)


@pytest.mark.parametrize(("previous", "prompt"), [(False, PROMPT), (True, None), (True, PROMPT)])
def test_text_before(both, previous, prompt):
    before = both.pair.listening.tokens.previous
    options = {}
    if prompt:
        import torch

        options["prompt_ids"] = torch.tensor([before, *both.pair.vocabulary.encode(" " + prompt)])
    for samples in SOUNDS.values():
        ours = both.pair.transcribe(
            samples, RATE, prompt=prompt, previous_text=previous, **PLAIN, **NO_THRESHOLDS
        )
        theirs = both.expected(
            samples, task="transcribe", condition_on_prev_tokens=previous, **options
        )
        check(both, samples, ours, theirs)


def no_speech_probs(both, monkeypatch, samples, **options):
    """transformers' segments, and its probability for each window."""
    from transformers.generation.logits_process import WhisperNoSpeechDetection

    found, call = [], WhisperNoSpeechDetection.__call__

    def kept(self, input_ids, scores):
        result = call(self, input_ids, scores)
        if input_ids.shape[1] == self.begin_index:
            found.append(float(self.no_speech_prob[0]))
        return result

    monkeypatch.setattr(WhisperNoSpeechDetection, "__call__", kept)
    return both.expected(samples, task="transcribe", temperature=(0.0,), **options), found


@pytest.mark.parametrize("previous", [False, True])
def test_windows_without_speech(both, monkeypatch, previous):
    """Their probability, also behind earlier text, and that they are left out."""
    samples, probabilities = SOUNDS["long"], []
    for log_prob, no_speech in ((-1e-9, 1.0), (-1e-9, None), (-0.6, None)):
        if no_speech is None:  # Some windows are above it and some below.
            no_speech = float(np.mean(probabilities))
        theirs, probs = no_speech_probs(
            both, monkeypatch, samples, logprob_threshold=log_prob, no_speech_threshold=no_speech,
            compression_ratio_threshold=1.5, condition_on_prev_tokens=previous,
        )  # fmt: skip
        ours = both.pair.transcribe(
            samples, RATE, **PLAIN, log_prob=log_prob, no_speech=no_speech, compression_ratio=1.5,
            previous_text=previous,
        )  # fmt: skip
        found = [each.no_speech_prob for each in ours.windows]
        np.testing.assert_allclose(found, probs, atol=1e-5)
        probabilities = probs if no_speech == 1 else probabilities
        heard = [each for each in ours.windows if not each.is_silence]
        check(both, samples, dataclasses.replace(ours, windows=heard), theirs)
        if log_prob == -1e-9:
            silent = [each.is_silence for each in ours.windows]
            assert silent == [each > no_speech for each in probs]
            assert any(silent) == (no_speech < 1)


def test_language_is_that_of_transformers(both):
    found = set()
    for seed in range(6):
        samples = sound(1, seed) * 10.0**-seed
        language = both.pair.transcribe(samples, RATE, **PLAIN, max_window_tokens=1).language
        detected = int(both.model.detect_language(both.features(samples), num_segment_frames=100))
        assert both.model.generation_config.lang_to_id[f"<|{language}|>"] == detected
        found.add(language)
    assert len(found) > 1


def test_prompts_are_encoded_as_by_transformers(both, directory):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    transcriber = both.pair.transcriber(prompt=f"  {PROMPT} ")
    expected = tokenizer.get_prompt_ids(PROMPT)[1:].tolist()
    assert transcriber._prompt() == tuple(expected)
    assert both.pair.transcriber(prompt="  ")._prompt() == ()
