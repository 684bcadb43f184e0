"""Bad input is refused with one line that says what was wrong; good files of all kinds are read."""

import json
import shutil

import numpy as np
import pytest
from small_whisper import MELS, RATE, sound, write_whisper

import specdec
from specdec.speech.audio import AudioError, read_audio

SOUND = sound(0.5)
HOW = {"method": "autoregressive", "max_window_tokens": 3, "temperatures": (0.0,)}


def refused(kind, match, call, *args, **options):
    with pytest.raises(kind, match=match) as found:
        call(*args, **options)
    assert "\n" not in str(found.value)


ARRAYS = {
    "no_rate": ((SOUND, None), "audio is an array: give its rate"),
    "rate_0": ((SOUND, 0), "rate must be .* got 0"),
    "rate_-1": ((SOUND, -1), "rate must be .* got -1"),
    "rate_1.5": ((SOUND, 1.5), "rate must be .* got 1.5"),
    "rate_true": ((SOUND, True), "rate must be .* got True"),
    "nan": ((np.array([0, np.nan]), RATE), "NaN or infinite"),
    "infinite": ((np.array([0, -np.inf]), RATE), "NaN or infinite"),
    "nothing": ((np.zeros(0), RATE), "lasts 0 s"),
    "no_channels": ((np.zeros((4, 0)), RATE), r"got one of float64 \[4, 0\]"),
    "channels_first": ((np.zeros((2, 400)), RATE), r"got one of float64 \[2, 400\]"),
    "three_axes": ((np.zeros((2, 2, 2)), RATE), r"\[2, 2, 2\]"),
    "bytes": ((np.zeros(9, np.uint8), RATE), "int16 or int32; got one of uint8"),
    "complex": ((np.zeros(9, complex), RATE), "complex128"),
    "none": ((None, RATE), "object"),
    "numbers": (([0.5, 0.1], RATE), r"audio 0 .* \[\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(both, name):
    given, match = ARRAYS[name]
    refused(AudioError, match, both.pair.transcribe, *given, **HOW)


def test_files(both, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    transcribe = both.pair.transcribe
    good, text, empty = (tmp_path / name for name in ("good.wav", "text.wav", "empty.wav"))
    soundfile.write(good, SOUND, RATE)
    text.write_text("No sound.")
    soundfile.write(empty, SOUND[:0], RATE)
    refused(AudioError, "good.wav has its rate in the file", transcribe, good, RATE)
    refused(AudioError, "text.wav is no sound that can be read .*: convert", transcribe, text)
    refused(AudioError, "gone.wav is no file", transcribe, tmp_path / "gone.wav")
    refused(AudioError, "is no file", transcribe, str(tmp_path))
    refused(AudioError, "empty.wav has no samples", transcribe, empty)
    refused(AudioError, "text.wav is no sound", transcribe, [good, text])
    refused(
        AudioError, "audio 1 has samples that are NaN", transcribe, [SOUND, SOUND * np.nan], RATE
    )


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("rate", [RATE, 48000, 8000])
def test_kinds_of_files(tmp_path, kind, rate):
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    at = np.arange(rate) / rate
    tone = 0.5 * np.sin(2 * np.pi * 440 * at)
    stereo = np.stack([tone, 0 * tone], 1)
    whole = {"subtype": "PCM_16"} if kind != "ogg" else {}
    soundfile.write(tmp_path / f"a.{kind}", stereo, rate, **whole)
    found = read_audio(str(tmp_path / f"a.{kind}"), None, RATE)
    assert found.dtype == np.float32
    assert len(found) == RATE
    expected = 0.25 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    inside = slice(1000, -1000)
    atol = 2e-2 if kind == "ogg" else 2e-4  # Ogg is lossy.
    np.testing.assert_allclose(found[inside], expected[inside], rtol=0, atol=atol)


def test_whole_numbers_and_channels():
    wide = np.array([[2**14, 0], [-(2**15), -(2**15)]])
    for samples in (wide.astype(np.int16), (wide * 2**16).astype(np.int32), wide / 2**15):
        np.testing.assert_allclose(read_audio(samples, RATE, RATE), [0.25, -1.0])


def test_silence(both):
    with pytest.warns(UserWarning, match="Recording 0 is silent: nothing was decoded"):
        found = both.pair.transcribe(np.zeros(RATE), RATE)
    assert (found.text, found.segments, found.language) == ("", [], None)
    assert found.as_srt() == ""


OPTIONS = {
    "language": (ValueError, "'xx' is none of the model's: de, en, fr, haw", {"language": "xx"}),
    "language_kind": (ValueError, "language must be a string", {"language": 3}),
    "task": (ValueError, "task", {"task": "sing"}),
    "unknown": (TypeError, "no keyword langage .* did you mean language", {"langage": "en"}),
    "max_decode_len": (ValueError, "max_window_tokens", {"max_decode_len": 5}),
    "samples": (
        ValueError, "num_samples = 1", {"num_samples": 2, "sampling": specdec.SamplingConfig(1.0)}
    ),
    "stop": (ValueError, "no stop", {"stop": ("a",)}),
    "auto": (ValueError, 'no "auto"', {"gamma": "auto"}),
    "temperatures": (ValueError, "temperatures must be", {"temperatures": (0.5, 0.2)}),
    "previous": (ValueError, "previous_text", {"previous_text": True, "windows": "overlapping"}),
    "no_speech": (ValueError, "no_speech=None", {"log_prob": None}),
    "prompt": (ValueError, "prompt must be text without special", {"prompt": "a <|endoftext|>"}),
    "overlap": (ValueError, "overlap", {"overlap": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options(both, name):
    kind, match, options = OPTIONS[name]
    refused(kind, match, both.pair.transcribe, SOUND, RATE, **options)


def test_models_that_read():
    pair = specdec.load_pair(target="quickstart", draft=specdec.Copying())
    refused(ValueError, "does not listen: use generate", pair.transcribe, SOUND, RATE)


def test_other_inputs(both):
    refused(ValueError, "this model listens", both.pair.generate, ["a text"])
    features = [np.zeros((100, 80), np.float32)]
    refused(ValueError, str(MELS), both.pair.generate, features, max_input_len=100)


def opened(directory):
    return specdec.load_pair(target=directory, draft=specdec.Quantized())


def test_another_models_files(directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    file = copy / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"feature_size": 80}))
    match = "preprocessor_config.json makes windows of 100 frames with 80 mel bins.*another model's"
    refused(ValueError, match, opened, copy)
    # transformers 5 writes it into another file.
    file.unlink()
    (copy / "processor_config.json").write_text(json.dumps({"feature_extractor": settings}))
    assert opened(copy).listening.frames == 100
    vocabulary = json.loads((copy / "tokenizer.json").read_text())
    for each in vocabulary["added_tokens"]:
        each["content"] = each["content"].replace("startofprev", "other")
    vocabulary["post_processor"] = None
    (copy / "tokenizer.json").write_text(json.dumps(vocabulary))
    refused(ValueError, r"has no token <\|startofprev\|>", opened, copy)
    (copy / "tokenizer.json").unlink()
    match = "no vocabulary, whose special tokens transcribe needs"
    refused(ValueError, match, opened(copy).transcribe, np.ones(1600, np.float32), 16_000)


def test_a_draft_of_another_input(directory, tmp_path):
    write_whisper(tmp_path, num_mel_bins=16)
    with pytest.raises(ValueError, match="a draft must read what its target reads"):
        specdec.load_pair(target=directory, draft=tmp_path)
