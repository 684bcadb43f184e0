"""Attention with shared keys, and settings that no model of rotary positions has."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY_ROTARY

from specdec.checkpoints.architectures import config_of
from specdec.models.attention import attend, attend_to_both
from specdec.models.packed import NEG_INF
from specdec.models.products import plain
from specdec.models.rotary.config import Rope


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


@pytest.mark.parametrize("variant", TINY_ROTARY)
def test_a_config_is_the_same_from_its_fields(variant):
    fields = dataclasses.asdict(TINY_ROTARY[variant])
    assert config_of(fields) == TINY_ROTARY[variant]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
        ({"head_dim": 5}, "head_dim must be even, got 5"),
        ({"activation": "relu"}, "activation must be 'silu' or 'gelu', got 'relu'"),
        ({"sliding": (True,)}, "window must be given"),
        ({"window": (-1, 0), "sliding": (True,)}, "window must be at least 0"),
        ({"attention_softcap": 0.0}, "attention_softcap must be a positive number"),
        ({"merged_attention": True}, "merged_attention needs an encoder"),
        ({"eos_id": 19}, "eos_id must be in 0..18, got 19"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'bfloat16'"),
    ],
)
def test_settings_that_are_none(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(TINY_ROTARY["llama"], **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 1.0}, "must all be given or none"),
        ({"low": 4.0, "high": 1.0, "original": 8}, "low must be less than high"),
        ({"base": 0.0}, "base must be a positive number"),
    ],
)
def test_ropes_that_are_none(changes, words):
    with pytest.raises(ValueError, match=words):
        Rope(**changes)
