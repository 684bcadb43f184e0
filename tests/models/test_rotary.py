"""Rotary positions: the packed decode path is the network, and what is broken differs from it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow import slow
from tiny import TINY_ROTARY, random_rotary_params

from specdec.checkpoints.architectures import config_of
from specdec.core.topology import CHAIN, Topology
from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.attention import attend, attend_to_both
from specdec.models.packed import NEG_INF
from specdec.models.products import plain
from specdec.models.rotary import model as rotary
from specdec.models.rotary.config import Rope, Stack
from specdec.models.rotary.model import RotaryModel
from specdec.models.rotary.network import Transformer, turned
from specdec.types import Prompt

INPUTS = np.random.default_rng(0).integers(2, 19, (3, 12))
LENGTHS = np.array([12, 4, 9])
TOKENS = jax.random.randint(jax.random.key(2), (3, 14), 0, 19)
TREE = Topology((-1, 0, 0, 1, 2))  # 0-1-3 and 0-2-4.
BEFORE = 7  # Tokens before the tree, which windows do not reach the first of.


def network_logits(config, params, tokens):
    """[B, T, V] behind each token."""
    real = np.arange(INPUTS.shape[1]) < LENGTHS[:, None]
    inputs = np.where(real, INPUTS, config.pad_id)
    given = (tokens,) if config.encoder is None else (inputs, tokens)
    return jax.jit(Transformer(config).apply)({"params": params}, *map(jnp.asarray, given))


def started(model, packed):
    """What a model makes of the inputs, and a cache without tokens."""
    prefix = np.zeros((3, 1), np.int32)
    inputs = INPUTS if not model.reads_prefix else INPUTS[:, :0]
    lengths = LENGTHS if not model.reads_prefix else np.zeros(3, np.int32)
    return model.start(packed, Prompt(inputs, lengths, prefix, np.ones(3, np.int32)), 32)


def packed_logits(model, packed, tokens):
    """[B, T, V], in blocks of one, five and the rest. Traced again, as patched code must be."""

    def along(packed, tokens):
        start, found, at = started(model, packed), [], 0
        cache = start.cache
        for count in (1, 5, tokens.shape[1] - 6):
            block = tokens[:, at : at + count]
            states, cache = model.extend(packed, start.encoded, cache, block)
            cache = model.commit(cache, None, jnp.full(3, count))
            found.append(model.logits(packed, states))
            at += count
        return jnp.concatenate(found, axis=1)

    return jax.jit(along)(packed, tokens)


def tree_logits(model, packed, tokens):
    """[B, N, V] of the nodes of a tree that follows the first of ``tokens``."""

    def of_nodes(packed, tokens):
        start = started(model, packed)
        _, cache = model.extend(packed, start.encoded, start.cache, tokens[:, :BEFORE], CHAIN)
        cache = model.commit(cache, None, jnp.full(3, BEFORE))
        nodes = tokens[:, BEFORE : BEFORE + TREE.size]
        states, _ = model.extend(packed, start.encoded, cache, nodes, TREE)
        return model.logits(packed, states)

    return jax.jit(of_nodes)(packed, tokens)


def expected_of_tree(config, params, tokens):
    """The same from the network, branch by branch."""
    found = [None] * TREE.size
    for branch in ([0, 1, 3], [0, 2, 4]):
        nodes = tokens[:, BEFORE + jnp.array(branch)]
        whole = jnp.concatenate([tokens[:, :BEFORE], nodes], axis=1)
        logits = network_logits(config, params, whole)
        for depth, node in enumerate(branch):
            found[node] = logits[:, BEFORE + depth]
    return jnp.stack(found, axis=1)


@functools.cache
def setting(variant, layout="in_out"):
    config = TINY_ROTARY[variant]
    params = random_rotary_params(config, 3)
    model = RotaryModel(config, layout)
    return config, params, model, model.pack(params)


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=4e-5, atol=6e-5)


VARIANTS = [
    ("llama", "in_out"), ("gemma2", "out_in"), ("t5gemma", "in_out"), ("t5gemma2", "out_in"),
    slow("qwen2", "in_out"), slow("qwen2", "out_in"), slow("llama", "out_in"),
    slow("gemma2", "in_out"), slow("t5gemma", "out_in"), slow("t5gemma2", "in_out"),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "layout"), VARIANTS)
def test_packed_is_the_network(variant, layout):
    config, params, model, packed = setting(variant, layout)
    expected = network_logits(config, params, TOKENS)
    assert np.std(expected) > 0.5
    same(packed_logits(model, packed, TOKENS), expected)


@pytest.mark.parametrize(
    "variant", ["gemma2", "t5gemma2", *map(slow, ("llama", "qwen2", "t5gemma"))]
)
def test_nodes_of_a_tree_turn_by_their_depths(variant):
    config, params, model, packed = setting(variant)
    same(tree_logits(model, packed, TOKENS), expected_of_tree(config, params, TOKENS))


def _by_slot(topology, length, count, after):
    del topology
    return length[:, None] + after + jnp.arange(count)


def _one_more(window, positions, entries):
    behind = positions[..., :, None] - entries[..., None, :]
    return (behind <= window[0] + 1) & (-behind <= window[1])


def _capped_behind_the_mask(patch):
    parts = attention.softmax_parts
    patch.setattr(attention, "_capped", lambda scores, softcap: scores)
    patch.setattr(attention, "softmax_parts", lambda x: parts(3.0 * jnp.tanh(x / 3.0)))


def _turned_encoder(patch):
    attended = RotaryModel.attended

    def broken(self, params, output, mask):
        found = attended(self, params, output, mask)
        by = rotary.angles(self.config.rope, 4, jnp.arange(output.shape[1])[None])
        keys = (turned(key.swapaxes(1, 2), by).swapaxes(1, 2) for key in found.keys)
        return dataclasses.replace(found, keys=tuple(keys))

    patch.setattr(RotaryModel, "attended", broken)


# What is broken, in which models it must be seen, and whether only a tree shows it.
MUTANTS = {
    "rotation by slot": (
        lambda patch: patch.setattr(kv, "token_positions", _by_slot),
        ("llama", "gemma2", "t5gemma2"), True,
    ),
    "window off by one": (
        lambda patch: patch.setattr(rotary, "within", _one_more),
        ("gemma2", "t5gemma", "t5gemma2"), False,
    ),
    "softcap behind the mask": (_capped_behind_the_mask, ("gemma2", "t5gemma"), False),
    "no softcap of scores": (
        lambda patch: patch.setattr(attention, "_capped", lambda scores, softcap: scores),
        ("gemma2", "t5gemma"), False,
    ),
    "second base everywhere": (
        lambda patch: patch.setattr(Stack, "rope_of", lambda self, sliding: self.sliding_rope),
        ("t5gemma2",), False,
    ),
    "no sqrt(d)": (
        lambda patch: patch.setattr(rotary, "embedding_scale", lambda stack, dtype: 1),
        ("gemma2", "t5gemma", "t5gemma2"), False,
    ),
    "an encoder's key turned": (_turned_encoder, ("t5gemma2", "t5gemma"), False),
}  # fmt: skip
CASES = [(name, variant) for name, (_, variants, _) in MUTANTS.items() for variant in variants]


@pytest.mark.parametrize(
    ("name", "variant"),
    [each if each[1] == MUTANTS[each[0]][1][0] else slow(*each) for each in CASES],
)
def test_what_is_broken_differs(monkeypatch, name, variant):
    breaking, _, trees = MUTANTS[name]
    config, params, model, packed = setting(variant)
    breaking(monkeypatch)
    if trees:
        same(packed_logits(model, packed, TOKENS), network_logits(config, params, TOKENS))
        found, expected = tree_logits(model, packed, TOKENS), None
        monkeypatch.undo()
        expected = expected_of_tree(config, params, TOKENS)
    else:
        found = packed_logits(model, packed, TOKENS)
        monkeypatch.undo()
        expected = network_logits(config, params, TOKENS)
    assert np.abs(found - expected).max() > 1e-2


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
