"""Reductions over the last axis against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import reductions


@pytest.mark.parametrize("size", [1, 2, 7, 68, 4096])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions_of_floats_and_integers(name, size):
    values = np.random.default_rng(0).normal(size=(2, 3, size)) * 10
    reduce = getattr(reductions, f"{name}_last")
    for x in (values.astype(np.float32), values.astype(np.int32)):
        expected = getattr(x, name)(axis=-1)
        got = reduce(jnp.asarray(x))
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [6, 7])
def test_they_stay_one_loop(size):
    """Of an odd number of entries, too, such as GPT-2's vocabulary."""
    x = jnp.zeros((1, size))
    for reduce in (reductions.sum_last, reductions.max_last, reductions.min_last):
        assert jax.jit(reduce).lower(x).as_text().count("init:") == 2


@pytest.mark.parametrize("size", [5, 64])
def test_softmax_of_removed_tokens_is_zero(size):
    logits = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32) * 20
    logits[0, ::2] = -np.inf
    logits[1, 1:] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
    expected = weights / weights.sum(axis=-1, keepdims=True)
    weights, total = reductions.softmax_parts(jnp.asarray(logits))
    got = np.asarray(weights / total)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert np.all(got[logits == -np.inf] == 0)


def test_a_nan_is_seen():
    x = jnp.array([1.0, jnp.nan, 3.0, 2.0])
    assert all(np.isnan(reduce(x)) for reduce in (
        reductions.sum_last, reductions.max_last, reductions.min_last
    ))  # fmt: skip
