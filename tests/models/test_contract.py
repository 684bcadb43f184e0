"""What every model promises the decode loop (specdec.models.base.Model)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, ragged_inputs, random_t5_params

from specdec.models.t5.model import T5Model
from specdec.models.t5.network import Transformer
from specdec.models.toy import ToyModel
from specdec.types import Topology

BATCH, LENGTH, MAX_LEN = 3, 6, 12


def make(name):
    """A model and its decode parameters."""
    if name == "toy":
        model = ToyModel(19)
        return model, jax.random.normal(jax.random.key(0), (31, 19))
    variant, layout, *stored = name.split("/")
    model = T5Model(TINY[variant], layout, *stored)
    return model, model.pack(random_t5_params(TINY[variant], 0))


MODELS = [
    "toy",
    *(f"{variant}/{layout}" for variant in TINY for layout in ("in_out", "out_in")),
    "v1.1/out_in/float16",
]


@pytest.fixture(params=MODELS, scope="module")
def setup(request):
    model, params = make(request.param)
    inputs = ragged_inputs(BATCH, 7, 19)
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, 19)
    return model, params, model.encode(params, inputs), tokens


def same(a, b):
    """But for float32 rounding: sums of up to 64 terms of logits near 5, in another order."""
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5)


def score(model, params, encoded, tokens, *, cache=None, topology=None):
    cache = model.init_cache(tokens.shape[0], MAX_LEN) if cache is None else cache
    return model.extend(params, encoded, cache, tokens, topology)


def test_extending_by_t_is_t_times_extending_by_one(setup):
    model, params, encoded, tokens = setup
    whole, _ = score(model, params, encoded, tokens)
    cache = model.init_cache(BATCH, MAX_LEN)
    for t in range(LENGTH):
        one, cache = model.extend(params, encoded, cache, tokens[:, t : t + 1])
        cache = model.commit(cache, None, jnp.ones(BATCH, jnp.int32))
        same(one[:, 0], whole[:, t])


def test_extending_is_causal(setup):
    model, params, encoded, tokens = setup
    before, _ = score(model, params, encoded, tokens)
    after, _ = score(model, params, encoded, tokens.at[:, 3].add(1) % 19)
    same(before[:, :3], after[:, :3])
    assert not np.allclose(before[:, 3:], after[:, 3:])


def test_rolling_back_is_never_having_drafted(setup):
    """Rows keep different numbers of guesses; what was rejected leaves no trace."""
    model, params, encoded, tokens = setup
    cache = model.init_cache(BATCH, MAX_LEN)
    _, cache = model.extend(params, encoded, cache, tokens[:, :2])
    cache = model.commit(cache, None, jnp.full(BATCH, 2))
    kept = jnp.array([0, 1, 3])
    guesses = jnp.where(jnp.arange(4) < kept[:, None], tokens[:, 2:6], 18 - tokens[:, 2:6])
    _, cache = model.extend(params, encoded, cache, guesses)
    cache = model.commit(cache, None, kept)
    following = jnp.stack([jnp.roll(tokens[b, 2:], -kept[b])[:2] for b in range(BATCH)])
    got, _ = model.extend(params, encoded, cache, following)
    truth, _ = score(model, params, encoded, tokens)
    for b in range(BATCH):
        at = 2 + int(kept[b])
        stop = min(at + 2, LENGTH)
        same(got[b, : stop - at], truth[b, at:stop])


def test_a_negative_count_forgets_committed_tokens(setup):
    model, params, encoded, tokens = setup
    _, cache = score(model, params, encoded, tokens)
    cache = model.commit(cache, None, jnp.full(BATCH, LENGTH))
    cache = model.commit(cache, None, jnp.array([-1, -2, -4]))
    again = jnp.stack([jnp.roll(tokens[b], n)[:1] for b, n in enumerate((1, 2, 4))])
    got, _ = model.extend(params, encoded, cache, again)
    truth, _ = score(model, params, encoded, tokens)
    for b, n in enumerate((1, 2, 4)):
        same(got[b, 0], truth[b, LENGTH - n])


def test_a_ragged_batch_is_its_rows_alone(setup):
    model, params, encoded, tokens = setup
    inputs = ragged_inputs(BATCH, 7, 19)
    together, _ = score(model, params, encoded, tokens)
    for b in range(BATCH):
        alone = model.encode(params, inputs[b : b + 1])
        same(score(model, params, alone, tokens[b : b + 1])[0][0], together[b])


def test_a_tree_scores_each_branch_as_a_chain(setup):
    """0-1-3 and 0-2-4, drafted as one block after two committed tokens."""
    model, params, encoded, tokens = setup
    tree = Topology((-1, 0, 0, 1, 2))
    cache = model.init_cache(BATCH, MAX_LEN)
    _, cache = model.extend(params, encoded, cache, tokens[:, :2])
    cache = model.commit(cache, None, jnp.full(BATCH, 2))
    nodes = jnp.array([[3, 5, 7, 9, 11]] * BATCH)
    got, written = model.extend(params, encoded, cache, nodes, tree)
    for branch in ([0, 1, 3], [0, 2, 4]):
        prefix = jnp.concatenate([tokens[:, :2], nodes[:, jnp.array(branch)]], axis=1)
        truth, _ = score(model, params, encoded, prefix)
        same(got[:, jnp.array(branch)], truth[:, 2:])
    # Keep the second branch; its nodes are not neighbours in the cache until commit.
    path = jnp.array([[0, 2, 4, 0, 0]] * BATCH)
    cache = model.commit(written, path, jnp.full(BATCH, 3))
    after, _ = model.extend(params, encoded, cache, jnp.full((BATCH, 1), 6))
    prefix = jnp.concatenate([tokens[:, :2], jnp.array([[3, 7, 11, 6]] * BATCH)], axis=1)
    same(after[:, 0], score(model, params, encoded, prefix)[0][:, -1])


@pytest.mark.parametrize("variant", TINY)
@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_packed_t5_is_the_network(variant, layout):
    """The packed halves against the linen network's on the same weights.

    Each half alone: these weights' attention is so sharp that the decoder makes a rounding error of
    the encoder, which is as far from float64 in either, twenty times as large.
    """
    config = TINY[variant]
    params = random_t5_params(config, 3)
    model = T5Model(config, layout)
    inputs = ragged_inputs(BATCH, 40, 19)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, 30), 0, 19)
    network, packed = Transformer(config), model.pack(params)
    encoded = model.encode(packed, inputs)
    truth = network.apply({"params": params}, inputs, method="encode")
    real = np.asarray(inputs) != config.pad_id
    np.testing.assert_allclose(encoded.output[real], truth[real], rtol=1e-4, atol=1e-4)

    logits, _ = model.extend(packed, encoded, model.init_cache(BATCH, 32), tokens)
    truth = network.apply({"params": params}, encoded.output, inputs, tokens, method="decode")
    np.testing.assert_allclose(logits, truth, rtol=1e-4, atol=1e-4)


def test_t5_in_bfloat16_is_close_to_float32():
    config = TINY["v1.1"]
    params = random_t5_params(config, 3)
    inputs, tokens = ragged_inputs(2, 7, 19), jnp.ones((2, 4), jnp.int32)
    both = []
    for dtype in ("float32", "bfloat16"):
        model = T5Model(dataclasses.replace(config, dtype=dtype))
        packed = model.pack(params)
        assert packed.layers[0].wi.dtype == jnp.dtype(dtype)
        logits, cache = model.extend(
            packed, model.encode(packed, inputs), model.init_cache(2, 8), tokens
        )
        assert (logits.dtype, cache.keys[0].dtype) == (jnp.float32, jnp.dtype(dtype))
        both.append(jax.nn.softmax(logits))
    assert float(jnp.abs(both[0] - both[1]).max()) < 0.1


@pytest.mark.parametrize("variant", TINY)
def test_kernels_stored_in_16_bits_compute_in_32(variant):
    config = TINY[variant]
    params = random_t5_params(config, 0)
    inputs, tokens = ragged_inputs(BATCH, 7, 19), jnp.full((BATCH, 1), 3)
    logits = []
    for stored in (None, "float16"):
        model = T5Model(config, "out_in", stored)
        packed = model.pack(params)
        assert packed.layers[0].wi.dtype == jnp.dtype(stored or "float32")
        assert packed.embedding.dtype == jnp.dtype(stored or "float32")
        assert packed.cross_kv.dtype == jnp.float32
        encoded = model.encode(packed, inputs)
        logits.append(model.extend(packed, encoded, model.init_cache(BATCH, MAX_LEN), tokens)[0])
    assert logits[1].dtype == jnp.float32
    difference = np.max(np.abs(logits[1] - logits[0]))
    assert 0 < difference < 0.05 * np.std(logits[0])
