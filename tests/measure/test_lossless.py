import math

import jax
import numpy as np
import pytest
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.checkpoints.loading import load_packed
from specdec.decoding.hypotheses import Hypothesis
from specdec.measure.lossless import Audit, Mismatch, compare, compare_beams, rounding
from specdec.models.transformer.network import Transformer
from specdec.training.teacher_forcing import decoder_inputs


def test_gap_is_that_of_the_target_at_the_first_difference():
    config = TINY["v1.1"]
    params = random_params(config, 0)
    target = load_packed(config, params, "test")
    inputs = np.asarray(ragged_inputs(1, 8, config.vocab_size))
    expected = [5, 7, 3, 1]
    prompt = prompt_of(target.model, inputs)
    mismatch = compare(target, prompt, [5, 7, 4, 1], expected)
    fed = decoder_inputs(config, np.asarray([expected]))
    logits = Transformer(config).apply({"params": params}, inputs, fed)
    second, first = np.sort(np.asarray(jax.device_get(logits))[0, 2])[-2:]
    assert mismatch.position == 2
    assert mismatch.expected == expected
    assert mismatch.top2_gap == pytest.approx(first - second, abs=1e-4)
    assert compare(target, prompt, expected, expected) is None


def test_lists_of_beams():
    def beams(*lists):
        return [Hypothesis(np.array(tokens), "eos", score=score) for tokens, score in lists]

    mine = beams(([5, 1], -0.5), ([6, 1], -1.0))
    assert compare_beams(mine, beams(([5, 1], -0.6), ([6, 1], -1.1))) is None
    swapped = compare_beams(mine, beams(([5, 1], -0.5), ([7, 1], -1.25)))
    assert swapped == Mismatch(1, 0.25, [7, 1])
    assert compare_beams(mine, mine[:1]) == Mismatch(1, math.inf, [])


def output(tokens, margins):
    return Hypothesis(np.array(tokens), "limit", margins=np.array(margins, np.float32))


def test_rounding_is_that_of_margins_until_tokens_part():
    mine = output([5, 6, 7, 8], [3.0, 0.5, 0.25, 9.0])
    same = output([5, 6, 7, 8], [3.0, 0.75, 0.25, 8.0])
    assert rounding(mine, same) == 1.0
    parted = output([5, 6, 9, 8], [3.0, 0.5, 0.125, 100.0])  # Two best logits changed places.
    assert rounding(mine, parted) == 0.375
    shorter = output([5, 6], [3.0, 0.625])
    assert rounding(mine, shorter) == 0.125
    alone = output([5], [np.inf])  # Rules left one token.
    assert rounding(alone, alone) == 0


def test_an_audit_counts_tokens_that_rounding_could_change():
    mine = output([5, 6, 7, 8], [3.0, 0.5, 0.25, 9.0])
    parted = output([5, 6, 9, 8], [3.0, 0.5, 0.125, 100.0])
    tied = output([1, 2], [0.0, 2.0])
    assert Audit.of([(mine, parted), (tied, tied)]) == Audit(6, 0.375, 2, 1)
    assert Audit.of([(tied, tied)]) == Audit(2, 0.0, 1, 0)
    assert Audit.of([]) == Audit(0, 0.0, 0, 0)
