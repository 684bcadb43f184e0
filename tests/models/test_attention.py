"""Attention whose queries share keys, by its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models.attention import NEG_INF, attend, attend_to_both
from specdec.models.products import few_tokens, plain


def _attention(query, keys, values, bias, softcap=None):
    """As its definition: [B, H, T, K], a key for each head."""
    scores = jnp.einsum("bhtk,bhmk->bhtm", query, keys)
    scores = scores if softcap is None else softcap * jnp.tanh(scores / softcap)
    return jnp.einsum("bhtm,bhmk->bhtk", jax.nn.softmax(scores + bias, axis=-1), values)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_shared_keys_are_as_copies_of_them(groups, softcap):
    key = iter(jax.random.split(jax.random.key(groups), 8))
    heads, size, batch, count = 6, 4, 4, 3

    def drawn(*shape):
        return jax.random.normal(next(key), shape)

    def apart(x):
        return x.reshape(*x.shape[:2], heads, size).transpose(0, 2, 1, 3)

    def copied(x):
        return jnp.repeat(x, heads // groups, axis=1)

    query = drawn(batch, count, heads * size)
    keys, values = drawn(batch, groups, 7, size), drawn(batch, groups, 7, size)
    more_keys, more_values = drawn(2, groups, 5, size), drawn(2, groups, 5, size)
    bias = jnp.where(drawn(batch, 1, count, 7) > 0, NEG_INF, 0.0).at[..., 0].set(0.0)
    more_bias = jnp.where(drawn(2, 1, 1, 5) > 0, NEG_INF, 0.0)
    found = attend(plain, heads, query, keys, values, bias, softcap)
    expected = _attention(apart(query), copied(keys), copied(values), bias, softcap)
    np.testing.assert_allclose(apart(found), expected, rtol=1e-4, atol=1e-5)

    both = attend_to_both(
        plain, heads, query, (keys, values, bias), (more_keys, more_values, more_bias), softcap
    )
    rows = jnp.repeat(jnp.arange(2), 2)  # Two rows share an encoding.
    all_keys = jnp.concatenate([keys, more_keys[rows]], axis=2)
    all_values = jnp.concatenate([values, more_values[rows]], axis=2)
    more_bias = jnp.broadcast_to(more_bias[rows], (batch, 1, count, 5))
    all_bias = jnp.concatenate([bias, more_bias], axis=3)
    expected = _attention(apart(query), copied(all_keys), copied(all_values), all_bias, softcap)
    np.testing.assert_allclose(apart(both), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "heads_apart"), [(6, True), (6, False), (2, False)])
def test_head_by_head_is_all_at_once(monkeypatch, groups, heads_apart):
    """Each head of each row with its own bias, also where rows or heads share one."""
    key = iter(jax.random.split(jax.random.key(groups), 4))
    heads, size, batch, count, entries = 6, 4, 3, 10, 7
    query = jax.random.normal(next(key), (batch, count, heads * size))
    keys, values = (jax.random.normal(next(key), (batch, groups, entries, size)) for _ in "kv")
    shape = (1, heads, count, entries) if heads_apart else (batch, 1, 1, entries)
    bias = jax.random.normal(next(key), shape)
    encoded = few_tokens.encoded_values(values)

    def found():
        at_once = attend(few_tokens, heads, query, keys, values, bias, 1.5)
        of_inputs = attend(few_tokens, heads, query, keys, encoded, bias, 1.5, encoded=True)
        return at_once, of_inputs

    expected, _ = found()
    monkeypatch.setattr(few_tokens, "SCORES_AT_ONCE", 0)
    for each in found():
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
