"""Segments of hand-made and random outputs, as transformers cuts them, and joined windows."""

import itertools

import numpy as np
import pytest

from specdec.speech.segments import Clock, Segment, joined

EOS, FIRST = 90, 100
CLOCK = Clock(FIRST, EOS, 0.02)


def cut(*tokens, frames=100, **options):
    tokens = np.array(tokens, np.int32)
    return CLOCK.cut(tokens, -np.arange(len(tokens), dtype=np.float32), 10.0, frames, **options)


def shown(segments):
    return [(round(each.start, 2), round(each.end, 2), *each.tokens.tolist()) for each in segments]


T = range(FIRST, FIRST + 51)
OUTPUTS = {
    "pair_end": ((T[5], 1, 2, T[20], T[20]), [(10.1, 10.4, 1, 2)], 4, 40),
    "text_behind_pair": ((T[5], 1, T[20], T[25], 2), [(10.1, 10.4, 1)], 3, 40),
    "alone_behind_pair": (
        (T[0], 1, T[20], T[25], 2, T[30]), [(10.0, 10.4, 1), (10.5, 10.6, 2)], 6, 100
    ),
    "alone": ((T[5], 1, T[20]), [(10.0, 10.4, 1)], 3, 100),
    "no_end": ((T[5], 1, 2), [(10.0, 10.1, 1, 2)], 3, 100),
    "none": ((1, 2), [(10.0, 11.0, 1, 2)], 2, 100),
    "from_0": ((T[0], 1, 2), [(10.0, 11.0, 1, 2)], 3, 100),
    "nothing": ((), [(10.0, 11.0)], 0, 100),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_cut(name):
    tokens, segments, said, frames = OUTPUTS[name]
    found = cut(*tokens)
    assert shown(found.segments) == segments
    assert (len(found.said), found.frames) == (said, frames)
    for each in found.segments:  # Their log-probabilities are those of their tokens.
        places = [tokens.index(token) for token in each.tokens.tolist()]
        assert (-each.log_probs).tolist() == places


def test_whole_windows_keep_what_is_behind_the_last_pair():
    found = cut(T[5], 1, T[20], T[25], 2, whole=True, frames=80)
    assert shown(found.segments) == [(10.1, 10.4, 1), (10.5, 10.8, 2)]
    assert found.frames == 80
    assert shown(cut(T[5], 1, T[20], T[25], whole=True).segments) == [
        (10.1, 10.4, 1), (10.5, 10.5)
    ]  # fmt: skip


def test_random_outputs_are_cut_as_by_transformers(torch):
    from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

    rng = np.random.default_rng(0)
    for _ in range(200):
        times = np.sort(rng.integers(1, 51, 12))
        is_time = rng.random(12) < 0.5
        is_time[2:] &= ~(is_time[1:-1] & is_time[:-2])  # There are no three in a row.
        tokens = np.where(is_time, FIRST + times, rng.integers(0, EOS, 12))[: rng.integers(1, 13)]
        if tokens[0] < FIRST and (tokens >= FIRST).any():
            tokens[0] = FIRST
        frames = int(rng.choice([50, 100]))
        theirs, offset = WhisperGenerationMixin._retrieve_segment(
            seek_sequence=torch.tensor(tokens), seek_outputs=[None], timestamp_begin=FIRST,
            time_offset=torch.tensor([10.0]).double(), seek_num_frames=torch.tensor([frames]),
            time_precision=0.02, time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0,
            return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 3),
        )  # fmt: skip
        found = cut(*tokens, frames=frames)
        expected = [
            Segment(float(each["start"]), float(each["end"]), np.array(text), np.array(text))
            for each in theirs
            if (text := [token for token in each["tokens"].tolist() if token < EOS]) or True
        ]
        assert shown(found.segments) == shown(expected), tokens
        assert found.frames == int(offset) or int(offset) == 0, tokens  # It would go on forever.


def segment(start, end, *tokens):
    tokens = np.array(tokens, np.int32)
    return Segment(start, end, tokens, -tokens.astype(np.float32))


def test_windows_are_joined_in_the_middle_of_what_they_have_in_common():
    left = [segment(0, 4, 1, 2), segment(4, 9, 3, 4, 5, 6, 7)]
    right = [segment(5.5, 9.2, 4, 5, 6, 8), segment(9.2, 14, 9)]
    found = joined([left, right], [0.0, 5.0], 10.0)
    assert shown(found) == [(0, 4, 1, 2), (4, 9.2, 3, 4, 5, 6, 8), (9.2, 14, 9)]
    for each in found:
        assert (-each.log_probs).tolist() == each.tokens.tolist()


def test_a_common_run_over_segments():
    left = [segment(0, 6, 1, 2), segment(6, 8, 3, 4), segment(8, 10, 7)]
    right = [segment(5, 7, 8, 2), segment(7, 9, 3, 4, 5)]
    found = joined([left, right], [0.0, 5.0], 10.0)
    assert [token for each in found for token in each.tokens.tolist()] == [1, 2, 3, 4, 5]
    assert all(a.end <= b.end for a, b in itertools.pairwise(found))


def test_windows_without_a_common_run_change_in_the_middle():
    left = [segment(0, 6, 1), segment(6, 8, 2), segment(8, 10, 3)]
    right = [segment(5, 6, 4), segment(7, 9, 5), segment(9, 14, 6)]
    found = joined([left, right], [0.0, 5.0], 10.0)
    assert shown(found) == [(0, 6, 1), (6, 8, 2), (7, 9, 5), (9, 14, 6)]


def test_one_common_token_is_chance():
    left, right = [segment(0, 6, 1), segment(6, 7, 2)], [segment(6, 7, 3, 2), segment(8, 14, 4)]
    assert shown(joined([left, right], [0.0, 5.0], 10.0))[-1] == (8, 14, 4)
    assert len(joined([left, right], [0.0, 5.0], 10.0)) == 3


def test_what_is_outside_the_overlap_is_not_compared():
    left = [segment(0, 4, 8, 9, 8, 9), segment(6, 8, 1, 2)]
    right = [segment(6, 8, 1, 2), segment(11, 14, 8, 9, 8, 9)]
    found = joined([left, right], [0.0, 5.0], 10.0)
    assert shown(found) == [(0, 4, 8, 9, 8, 9), (6, 8, 1, 2), (11, 14, 8, 9, 8, 9)]


def test_words_that_the_border_cuts_come_from_the_window_that_has_them_whole():
    left = [segment(0, 10, 1, 2, 3, 4, 50)]  # 50: the first half of 5.
    right = [segment(5, 12, 51, 3, 4, 5, 6)]  # 51: the second half of 2.
    found = joined([left, right], [0.0, 5.0], 10.0)
    assert shown(found) == [(0, 12, 1, 2, 3, 4, 5, 6)]


def test_no_windows():
    assert joined([], [], 1.0) == []
    assert joined([[], []], [0.0, 5.0], 10.0) == []
