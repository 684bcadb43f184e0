"""Real weights against transformers in float32: greedy tokens of every way, and log-probabilities.

SPECDEC_REAL_WEIGHTS names a directory that holds gemma-3-270m and smollm2-135m-instruct, and of
models that listen whisper-base and whisper-tiny.en with a recording of 44 s, two_cities.wav.
"""

import functools
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from log_probs import read_by_transformers
from tiny import logits_along

import specdec
from specdec.speech.audio import read_audio

PLACE = os.environ.get("SPECDEC_REAL_WEIGHTS")
pytestmark = [
    pytest.mark.skipif(PLACE is None, reason="SPECDEC_REAL_WEIGHTS names no directory of models"),
    pytest.mark.filterwarnings("ignore"),
]
COUNT = 12  # Tokens of each output.
TEXTS = {
    "gemma-3-270m": ["The capital of France is", "1, 2, 3,"],
    "smollm2-135m-instruct": [
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        "Once upon a time",
    ],
}  # fmt: skip
WAYS = {
    "plain": {"method": "autoregressive"}, "chain": {"gamma": 4}, "tree": {"tree": (2, 2, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_and_log_probs_of_transformers(name):
    torch = pytest.importorskip("torch")
    directory = Path(PLACE or "") / name
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there")
    pair = specdec.load_pair(target=directory, draft=specdec.Quantized())  # The copy of 8 bits.
    model = read_by_transformers(directory)
    rows = []
    for text in TEXTS[name]:
        ids = torch.tensor([pair.token_ids([text], max_input_len=64)[0].tolist()])
        with torch.no_grad():
            told = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=COUNT,
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        tokens = told.sequences[0, ids.shape[1] :]
        log_probs = torch.log_softmax(torch.cat(told.logits).float(), -1)
        rows.append((tokens.tolist(), log_probs[range(len(tokens)), tokens].numpy()))
        # Those of all tokens of the vocabulary, too.
        loaded, read = pair.target, np.concatenate([ids[0, -1:], tokens[:-1]])[None]
        prompt = loaded.model.prompt(ids.numpy(), np.array([ids.shape[1]]))
        found = logits_along(loaded.model, loaded.params, prompt, read)
        found = jax.nn.log_softmax(found, axis=-1)[0]
        np.testing.assert_allclose(found, log_probs.numpy(), rtol=0, atol=1e-4)
    for way, how in WAYS.items():
        out = pair.generate(
            TEXTS[name], batch_size=len(TEXTS[name]), max_decode_len=COUNT, log_probs=True,
            max_input_len=64, **how,
        )  # fmt: skip
        for found, log_probs, (tokens, expected) in zip(
            out.tokens, out.log_probs, rows, strict=True
        ):
            assert found.tolist() == tokens, way
            np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-4, err_msg=way)
    assert out.stats.accepted > 0


RATE = 16000
HOW = {"temperatures": (0.0,), "compression_ratio": None, "log_prob": None, "no_speech": None}
SPEECH_WAYS = {
    "plain": {"method": "autoregressive"}, "chain": {"gamma": 6}, "tree": {"tree": (2, 2, 1)},
}  # fmt: skip


@pytest.fixture(scope="module", params=["whisper-base", "whisper-tiny.en"])
def whisper(request):
    """A pair, transformers' model, its features of samples, and the recording."""
    pytest.importorskip("torch")
    pytest.importorskip("soundfile")
    directory = Path(PLACE or "") / request.param
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there")
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    extractor = WhisperFeatureExtractor.from_pretrained(directory)
    samples = read_audio(directory.parent / "two_cities.wav", None, RATE)

    def features(samples, **options):
        return extractor(samples, sampling_rate=RATE, return_tensors="pt", **options).input_features

    pair = specdec.load_pair(target=directory, draft=specdec.Quantized())
    model = WhisperForConditionalGeneration.from_pretrained(directory).float().eval()
    tokens = pair.listening.tokens
    if tokens.languages:  # Ours finds the language; transformers is given it, with its tokens.
        settings = model.generation_config
        settings.lang_to_id = {f"<|{code}|>": i for code, i in tokens.languages.items()}
        settings.task_to_id = dict(tokens.tasks)
        asked = {"language": "en", "task": "transcribe"}
        model.generate = functools.partial(model.generate, **asked)
    return pair, model, features, samples


def outputs_of(result, eos):
    """Tokens without EOS and their log-probabilities by what transformers drew them from."""
    torch = pytest.importorskip("torch")
    scores = torch.log_softmax(torch.stack(tuple(result["scores"])).float(), -1)
    tokens = result["sequences"][-len(scores) :]
    count = len(tokens) - int(tokens[-1] == eos)
    return tokens.numpy()[:count], scores[range(len(tokens)), tokens].numpy()[:count]


def check_windows(found, expected):
    assert len(found) == len(expected)
    for heard, (tokens, log_probs) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(heard.tokens, tokens)
        np.testing.assert_allclose(heard.log_probs, log_probs, rtol=0, atol=1e-3)


def test_transcripts_of_transformers(whisper):
    pair, model, features, samples = whisper
    eos = pair.target.model.eos_ids[0]
    segments = model.generate(
        features(samples, truncation=False, padding="longest"), return_segments=True,
        return_dict_in_generate=True, output_scores=True, return_timestamps=True,
    )["segments"][0]  # fmt: skip
    results = list({id(each["result"]): each["result"] for each in segments}.values())
    expected = [outputs_of(each, eos) for each in results]
    for how in SPEECH_WAYS.values():
        found = pair.transcribe(samples, RATE, **how, **HOW)
        check_windows(found.windows, expected)
        assert len(found.segments) == len(segments)
        for ours, theirs in zip(found.segments, segments, strict=True):
            tokens = theirs["tokens"].numpy()
            np.testing.assert_array_equal(ours.tokens, tokens[tokens < eos])
            times = float(theirs["start"]), float(theirs["end"])
            np.testing.assert_allclose((ours.start, ours.end), times, atol=1e-6)


@pytest.mark.parametrize("beams", [1, 5])
def test_a_window_without_times(whisper, beams):
    pair, model, features, samples = whisper
    samples, count = samples[: 30 * RATE], 30
    result = model.generate(
        features(samples), num_beams=beams, max_new_tokens=count, return_dict_in_generate=True,
        output_scores=True, return_timestamps=False,
    )  # fmt: skip
    tokens = result["sequences"][0, -count:].numpy()
    ways = SPEECH_WAYS
    if beams > 1:
        config = specdec.BeamConfig(num_beams=beams, rule="huggingface")
        ways = {"beams": {"method": "beam", "beam": config}}
    for how in ways.values():
        found = pair.transcribe(samples, RATE, **how, max_window_tokens=count, **HOW).windows[0]
        np.testing.assert_array_equal(found.tokens, tokens[: len(found.tokens)])
        assert len(found.tokens) >= count - 1


def test_a_batch_of_windows_is_each_alone(whisper):
    pair, _, _, samples = whisper
    how = HOW | {"windows": "overlapping", "max_window_tokens": 40}
    alone = pair.transcribe(samples, RATE, method="autoregressive", **how)
    found = pair.transcribe(samples, RATE, gamma=6, batch_size=2, **how)
    check_windows(found.windows, [(each.tokens, each.log_probs) for each in alone.windows])
    assert found.text == alone.text
