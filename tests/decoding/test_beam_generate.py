"""``pair.generate`` by plain and speculative beams: what comes out, and bad arguments."""

import re

import numpy as np
import pytest
from pairs import pair_of

import specdec
from specdec.core.theory import levels_per_call

TEXTS = [[5, 9, 1], [3, 4, 8, 12, 1], [7, 1]]
LIMIT = 10
FAST = {"method": "speculative_beam"}


@pytest.fixture(scope="module")
def pair(paths):
    return pair_of(paths, "t5", "itself")


def test_the_best_and_the_others(pair):
    beam = specdec.BeamConfig(4)
    options = dict(method="beam", beam=beam, max_decode_len=LIMIT)
    out = pair.generate(TEXTS, num_return=3, batch_size=2, **options)
    alone = pair.generate(TEXTS, **options)
    assert out.texts is None
    assert out.traces is None
    for row, one, tokens in zip(out.beams, alone.beams, out.tokens, strict=True):
        assert 1 <= len(row) <= 3
        assert [each.score for each in row] == sorted((e.score for e in row), reverse=True)
        np.testing.assert_array_equal(row[0].tokens, tokens)
        (best,) = one
        np.testing.assert_array_equal(best.tokens, tokens)
        assert best.score == pytest.approx(row[0].score, abs=1e-4)
        for each in row:
            divided = ((5 + len(each.tokens)) / 6) ** 0.6
            if each.tokens[-1] == 1:
                assert each.score == pytest.approx(each.log_prob / divided, abs=1e-4)
    assert out.stats.emitted == sum(map(len, out.tokens))
    assert out.stats.num_rows == 3
    assert out.stats.target_calls >= max(map(len, out.tokens))


def test_no_text_no_beams(pair):
    out = pair.generate([], method="beam")
    assert out.beams == out.tokens == []


def test_texts_of_hypotheses():
    pair = specdec.load_pair("quickstart")
    out = pair.generate(["The house is old."], method="beam", num_return=2, max_decode_len=16)
    assert out.beams is not None
    first, second = out.beams[0]
    assert out.texts == [first.text]
    assert first.text != second.text
    assert str(first.text).startswith("Das Haus")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"beam": specdec.BeamConfig(20)}, "num_beams is 20, more than the vocabulary's 19"),
        ({"num_return": 5}, "num_return must be in 1..4, got 5"),
        ({"sampling": specdec.SamplingConfig(1.0)}, "Beam search draws nothing"),
        ({"sampling": specdec.SamplingConfig(0.0, top_k=3)}, "temperature 0 and nothing else"),
        ({"gamma": 3}, "Beam search has no draft: leave gamma out, got 3"),
        ({"tree": (2, 1)}, "leave tree out"),
        ({"trace": True}, "Beam search has no blocks"),
        ({"beam": 4}, "beam must be a BeamConfig"),
        ({"method": "speculative", "beam": specdec.BeamConfig()}, 'belong to method="beam"'),
        ({"method": "beams"}, "'beam' or 'speculative_beam', got 'beams'"),
        (FAST | {"draft_beams": 3}, "draft_beams must be at least 4, got 3"),
        (FAST | {"draft_beams": 20}, "draft_beams is 20, more than the vocabulary's 19 tokens"),
        (FAST | {"gamma": 0}, 'got 0; for plain decoding use method="beam"'),
        (FAST | {"gamma": 10}, "gamma must be in [1, max_decode_len - 1] = [1, 9], got 10"),
        (FAST | {"gamma": "many"}, 'gamma must be a whole number or "auto"'),
        (FAST | {"tree": (2, 1)}, "leave tree out"),
        ({"draft_beams": 4}, 'draft_beams belongs to method="speculative_beam"'),
    ],
)
def test_bad_arguments(pair, arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        pair.generate(TEXTS, max_decode_len=LIMIT, **({"method": "beam"} | arguments))


def test_fewer_tokens_than_draft_beams_would_be(pair):
    options = {"beam": specdec.BeamConfig(7), "max_decode_len": LIMIT}
    found = pair.generate(TEXTS[:1], **FAST, gamma=1, **options)
    plain = pair.generate(TEXTS[:1], method="beam", **options)
    np.testing.assert_array_equal(found.tokens[0], plain.tokens[0])
    assert pair.generate([], **FAST).beams == []


def test_predictions():
    counts = [0, 5, 3, 2]
    assert levels_per_call(counts, 2) == pytest.approx(1.7)
    assert levels_per_call(counts, 1) == pytest.approx(1.5)
    assert levels_per_call(counts, 0) == 1
