"""``pair.generate(method="beam")``: what comes out, and what it says of bad arguments."""

import re

import jax
import numpy as np
import pytest
from tiny import TINY, random_params

import specdec
from specdec.checkpoints import save_huggingface

TEXTS = [[5, 9, 1], [3, 4, 8, 12, 1], [7, 1]]
LIMIT = 10


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("pair")
    save_huggingface(path, TINY["v1.1"], jax.device_get(random_params(TINY["v1.1"], 3)))
    return specdec.load_pair(target=path, draft=specdec.Copying())


@pytest.mark.parametrize("rule", ["t5x", pytest.param("huggingface", marks=pytest.mark.slow)])
def test_the_best_and_the_others(pair, rule):
    beam = specdec.BeamConfig(4, rule)
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
            length = len(each.tokens)
            divided = ((5 + length) / 6) ** 0.6 if rule == "t5x" else length
            if rule == "huggingface" or each.tokens[-1] == 1:
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


GREEDY = specdec.SamplingConfig(0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"beam": specdec.BeamConfig(20)}, "num_beams is 20, more than the vocabulary's 19"),
        ({"num_return": 5}, "num_return must be in 1..4, got 5"),
        ({"num_return": 0}, "num_return must be in 1..4, got 0"),
        ({"sampling": specdec.SamplingConfig(1.0)}, "Beam search draws nothing"),
        ({"sampling": specdec.SamplingConfig(0.0, top_k=3)}, "temperature 0 and nothing else"),
        ({"sampling": specdec.SamplingConfig(0.0, top_p=0.5)}, "temperature 0 and nothing else"),
        ({"gamma": 3}, "Beam search has no draft: leave gamma out, got 3"),
        ({"tree": (2, 1)}, "leave tree out"),
        ({"verifier": specdec.TokenVerifier()}, "leave verifier out"),
        ({"stop_below": 0.5}, "leave stop_below out, got 0.5"),
        ({"draft_sampling": GREEDY}, "leave draft_sampling out"),
        ({"trace": True}, "Beam search has no blocks"),
        ({"beam": 4}, "beam must be a BeamConfig"),
        ({"method": "speculative", "beam": specdec.BeamConfig()}, 'belong to method="beam"'),
        ({"method": "autoregressive", "num_return": 2}, 'belong to method="beam"'),
        ({"method": "beams"}, "'beam' or 'speculative_beam', got 'beams'"),
    ],
)
def test_bad_arguments(pair, arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        pair.generate(TEXTS, **({"method": "beam"} | arguments))
