"""``pair.generate(method="speculative_beam")``: what it says of bad arguments."""

import re

import jax
import numpy as np
import pytest
from tiny import TINY, random_t5_params

import specdec
from specdec.checkpoints import save_huggingface
from specdec.core.theory_beams import beam_speedup, levels_per_call

METHOD = "speculative_beam"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("pair")
    save_huggingface(path, TINY["v1.1"], jax.device_get(random_t5_params(TINY["v1.1"], 3)))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"draft_beams": 3}, "draft_beams must be at least 4, got 3"),
        ({"draft_beams": 20}, "draft_beams is 20, more than the vocabulary's 19 tokens"),
        ({"gamma": 0}, 'got 0; for plain decoding use method="beam"'),
        ({"gamma": 10}, "gamma must be in [1, max_decode_len - 1] = [1, 9], got 10"),
        ({"gamma": "many"}, 'gamma must be a whole number or "auto"'),
        ({"tree": (2, 1)}, "leave tree out"),
        ({"method": "beam", "draft_beams": 4}, 'draft_beams belongs to method="speculative_beam"'),
    ],
)
def test_bad_arguments(tiny, arguments, words):
    pair = specdec.load_pair(target=tiny, draft=str(tiny))
    with pytest.raises(ValueError, match=re.escape(words)):
        pair.generate([[5, 9, 1]], max_decode_len=10, **{"method": METHOD, **arguments})


def test_fewer_tokens_than_draft_beams_would_be(tiny):
    pair = specdec.load_pair(target=tiny, draft=str(tiny))
    options = {"beam": specdec.BeamConfig(7), "max_decode_len": 10}
    found = pair.generate([[5, 9, 1]], method=METHOD, gamma=1, **options)
    plain = pair.generate([[5, 9, 1]], method="beam", **options)
    np.testing.assert_array_equal(found.tokens[0], plain.tokens[0])
    assert pair.generate([], method=METHOD).beams == []


def test_predictions():
    counts = [0, 5, 3, 2]
    assert levels_per_call(counts, 2) == pytest.approx(1.7)
    assert levels_per_call(counts, 1) == pytest.approx(1.5)
    assert levels_per_call(counts, 0) == 1
    assert beam_speedup(1.7, 2, 0.1, 1.5) == pytest.approx(1.0)
