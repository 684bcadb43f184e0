"""Every way to decode gives the same transcripts; so do batches of recordings and of windows."""

import numpy as np
import pytest
from small_whisper import RATE, Both, sound, write_whisper

HOW = {"compression_ratio": None, "log_prob": None, "no_speech": None, "temperatures": (0.0,)}
SOUND = sound(2.3)
WAYS = {"chain": {"gamma": 3}, "tree": {"tree": (2, 1)}, "beam_1": {"method": "beam"}}


def same(found, expected):
    assert found.text == expected.text
    assert (found.language, len(found.windows)) == (expected.language, len(expected.windows))
    for a, b in zip(found.segments, expected.segments, strict=True):
        assert (a.start, a.end, a.text) == (b.start, b.end, b.text)
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)


@pytest.fixture(scope="module")
def plain(both):
    return both.pair.transcribe(SOUND, RATE, method="autoregressive", **HOW)


@pytest.mark.parametrize("way", ["chain", "tree"])
def test_speculation(both, plain, way):
    same(both.pair.transcribe(SOUND, RATE, **WAYS[way], **HOW), plain)


def test_several_recordings(both, plain):
    """Long ones, one of a window, which has no times, and a silent one, as each alone."""
    sounds = [SOUND, sound(0.7, 1), np.zeros(RATE), sound(1.4, 2)]
    with pytest.warns(UserWarning, match="Recording 2 is silent"):
        found = both.pair.transcribe(sounds, RATE, gamma=3, batch_size=2, **HOW)
    same(found[0], plain)
    for i in (1, 3):
        same(found[i], both.pair.transcribe(sounds[i], RATE, method="autoregressive", **HOW))
    assert (found[2].text, found[2].segments, found[2].duration) == ("", [], 1.0)
    assert {(each.start, each.end) for each in found[1].segments} == {(0.0, 0.7)}


def test_samples_of_several_recordings(both):
    """Random numbers of a window are the same beside other recordings behind it."""
    sounds = [sound(1.5), sound(1.2, 1)]
    options = HOW | {"temperatures": (0.7,)}
    alone = both.pair.transcribe(sounds[:1], RATE, gamma=2, batch_size=2, **options)[0]
    beside = both.pair.transcribe(sounds, RATE, gamma=2, batch_size=2, **options)[0]
    same(beside, alone)


def test_limits_do_not_follow_from_other_recordings(both):
    """A recording that continues much text leaves fewer positions than one that continues none."""
    sounds = [sound(2.3, 1), sound(1.3)]
    options = HOW | {"previous_text": True, "method": "autoregressive"}
    found = both.pair.transcribe(sounds, RATE, batch_size=2, **options)
    for one, samples in zip(found, sounds, strict=True):
        same(one, both.pair.transcribe(samples, RATE, **options))


def test_overlapping_windows(both):
    """A batch of them is what each is alone, joined."""
    options = HOW | {"windows": "overlapping", "overlap": 0.25, "language": "en"}
    one = both.pair.transcribe(SOUND, RATE, method="autoregressive", **options)
    same(both.pair.transcribe(SOUND, RATE, gamma=3, batch_size=3, **options), one)
    assert len(one.windows) == 3  # At 0, 0.75 and 1.5 s.
    tokens, features = both.pair.listening.tokens, both.pair.listening.features(SOUND)
    for i, heard in enumerate(one.windows):
        frames = features[75 * i :][:100]
        frames = np.pad(frames, ((0, 100 - len(frames)), (0, 0)))
        out = both.pair.generate(
            [frames], prefix=[tokens.languages["en"], tokens.tasks["transcribe"]],
            method="autoregressive", max_decode_len=45, max_input_len=100, log_probs=True,
            rules=(*both.pair.target.rules, rule(tokens)),
        )  # fmt: skip
        np.testing.assert_array_equal(heard.tokens, out.tokens[0][: len(heard.tokens)])


def rule(tokens):
    from specdec.rules.timestamps import Timestamps

    return Timestamps(tokens.first_timestamp, tokens.no_timestamps, tokens.most_initial_timestamp)


def test_fallback(both):
    """A window that looks wrong is decoded again, at the next temperature, and no other."""
    options = HOW | {"temperatures": (0.0, 0.6), "log_prob": -0.6, "gamma": 3}
    found = both.pair.transcribe(SOUND, RATE, **options)
    again = both.pair.transcribe(SOUND, RATE, **options)
    same(found, again)
    assert {each.temperature for each in found.windows} <= {0.0, 0.6}
    never = both.pair.transcribe(SOUND, RATE, **options | {"log_prob": -100.0})
    assert {each.temperature for each in never.windows} == {0.0}
    always = both.pair.transcribe(SOUND, RATE, **options | {"log_prob": 0.0})
    assert {each.temperature for each in always.windows} == {0.6}


def test_recordings_that_just_fit(both):
    """A window exactly, and a sample more, which is less than a frame: neither has times."""
    for samples, times in ((sound(1), 0), (sound(1 + 1 / RATE), 0), (sound(1.01), 1)):
        found = both.pair.transcribe(
            samples, RATE, method="autoregressive", max_window_tokens=6, **HOW
        )
        starts = both.pair.listening.tokens.first_timestamp
        assert (found.windows[0].tokens[0] >= starts) == times


def test_english_only(tmp_path):
    pytest.importorskip("torch")
    write_whisper(tmp_path, multilingual=False)
    both = Both(tmp_path)
    found = both.pair.transcribe(SOUND[:RATE], RATE, gamma=3, timestamps=True, **HOW)
    assert (found.language, found.language_probability) == (None, None)
    theirs = both.expected(SOUND[:RATE])
    eos = both.pair.target.model.eos_ids[0]
    tokens = [token for each in theirs for token in each["tokens"].tolist() if token < eos]
    assert [token for each in found.segments for token in each.tokens.tolist()] == tokens
    with pytest.raises(ValueError, match="English-only: leave language out, got 'de'"):
        both.pair.transcribe(SOUND, RATE, language="de")
    with pytest.raises(ValueError, match="English-only and cannot translate"):
        both.pair.transcribe(SOUND, RATE, task="translate")
    both.pair.transcriber(language="English")


def test_progress(both, capsys):
    both.pair.transcribe(
        [SOUND, sound(0.7)], RATE, progress=True, gamma=2, max_window_tokens=4, **HOW
    )
    assert "3 of 3 s of sound" in capsys.readouterr().err


def test_stats(both):
    out = both.pair.transcriber(gamma=3, **HOW).transcribe([SOUND, sound(0.7)])
    tokens = sum(len(each.tokens) for one in out.transcripts for each in one.windows)
    assert out.stats.emitted >= tokens
    assert out.stats.gamma == 3
