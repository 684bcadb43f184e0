"""The kernels for a GPU, interpreted on the CPU: what they compute, and where they are used."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from slow import slow
from tiny import EVERY, prompt_of, ragged_inputs, random_params

from specdec.checkpoints.architectures import decode_model
from specdec.core import platforms
from specdec.models.attention import NEG_INF
from specdec.models.products import fused

# Of float32 sums of up to 300 terms, and of one rounding to bfloat16.
NEAR = {"float32": 1e-5, "bfloat16": 2**-7}
DTYPES = pytest.mark.parametrize("dtype", NEAR)
UNFUSED = dataclasses.replace(platforms.GPU, fused=False)


def random(seed, *shape, dtype="float32"):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def same(got, want, dtype="float32"):
    """Within a part of the largest, for what cancels keeps the errors of what it was."""
    off = np.max(np.abs(np.asarray(got, np.float64) - want))
    assert off <= NEAR[dtype] * np.max(np.abs(want))


def wide(*arrays):
    return [np.asarray(array, np.float64) for array in arrays]


def normed(x, scale, bias):
    if bias is not None:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale
    return x if bias is None else x + bias


# Sizes that are whole blocks, and such that are not.
@pytest.mark.parametrize(
    ("rows", "depth", "out"), [((1, 8), 64, 48), ((3, 7), 300, 41), ((1, 1), 16, 5)]
)
@DTYPES
def test_product_of_normed(rows, depth, out, dtype):
    x = 3 + random(0, *rows, depth, dtype=dtype)
    kernel, scale = random(1, depth, 2 * out, dtype=dtype), random(2, depth)
    truth = wide(x, kernel, scale)
    products = normed(truth[0], truth[2], None) @ truth[1]
    norm = fused.Norm(scale, None, 1e-6)
    same(fused.product_of_normed(x, norm, kernel), products, dtype)
    gated = fused.product_of_normed(x, norm, kernel, act=jax.nn.relu, gated=True)
    same(gated, np.maximum(products[..., :out], 0) * products[..., out:], dtype)
    tied = fused.product_of_normed(x, norm, kernel.T, tied=True, dtype=jnp.float32)
    assert tied.dtype == jnp.float32
    same(tied, products, dtype)


@DTYPES
def test_product_of_layer_normed(dtype):
    x = 3 + random(0, 2, 5, 80, dtype=dtype)
    kernel, bias = random(1, 80, 50, dtype=dtype), random(2, 50, dtype=dtype)
    scale, shift = random(3, 80, dtype=dtype), random(4, 80, dtype=dtype)
    norm = fused.Norm(scale, shift, 1e-6)
    got = fused.product_of_normed(x, norm, kernel, bias, act=jax.nn.relu)
    x, kernel, bias, scale, shift = wide(x, kernel, bias, scale, shift)
    same(got, np.maximum(normed(x, scale, shift) @ kernel + bias, 0), dtype)


@pytest.mark.parametrize("depth", [32, 70])
@DTYPES
def test_added(depth, dtype):
    x, h = random(0, 2, 5, 33, dtype=dtype), random(1, 2, 5, depth, dtype=dtype)
    kernel, bias = random(2, depth, 33, dtype=dtype), random(3, 33, dtype=dtype)
    truth = wide(x, h, kernel, bias)
    same(fused.added(x, h, kernel), truth[0] + truth[1] @ truth[2], dtype)
    same(fused.added(x, h, kernel, bias), truth[0] + truth[1] @ truth[2] + truth[3], dtype)


def attended(query, keys, values, bias):
    """[B, T, I] of [B, T, I], [B, H, M, K] and what is added to products."""
    batch, heads, _, width = keys.shape
    query = query.reshape(batch, -1, heads, width).transpose(0, 2, 1, 3)
    scores = query @ keys.transpose(0, 1, 3, 2) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ values
    return mixed.transpose(0, 2, 1, 3).reshape(batch, -1, heads * width)


def attention_case(tokens, heads, width, capacity, starts, dtype):
    """Queries, keys and values of new tokens; a cache; a causal bias, and where tokens begin."""
    batch = len(starts)
    qkv = random(0, batch, tokens, 3 * heads * width, dtype=dtype)
    keys, values = (random(i, batch, heads, capacity, width, dtype=dtype) for i in (1, 2))
    bias = random(3, batch, heads, tokens, capacity)
    start = jnp.array(starts, jnp.int32)
    last = start[:, None, None, None] + jnp.arange(tokens)[:, None]
    return qkv, keys, values, jnp.where(jnp.arange(capacity) <= last, bias, NEG_INF), start


# One block of a cache and several; the last row is full. Rows of different lengths.
@pytest.mark.parametrize(
    ("tokens", "heads", "width", "capacity", "starts"),
    [(8, 2, 16, 40, [11, 0, 32]), (3, 2, 12, 300, [126, 260, 297]), (20, 1, 64, 256, [5])],
)
@DTYPES
def test_self_attention(tokens, heads, width, capacity, starts, dtype):
    case = attention_case(tokens, heads, width, capacity, starts, dtype)
    got, *written = fused.self_attention(*case, scale=0.5)
    qkv, *cache, bias, _ = case
    query, *new = np.split(np.asarray(qkv), 3, axis=-1)
    for got_entries, entries, block in zip(written, cache, new, strict=True):
        truth = np.array(entries)
        for row, at in enumerate(starts):
            heads_first = block[row].reshape(tokens, heads, width).transpose(1, 0, 2)
            truth[row, :, at : at + tokens] = heads_first
        np.testing.assert_array_equal(got_entries, truth)
    query, keys, values, bias = wide(query, *written, bias)
    same(got, attended(query * 0.5, keys, values, bias), dtype)


def test_a_start_behind_the_end_is_moved_back():
    """As ``dynamic_update_slice`` does; finished rows may be there."""
    case = attention_case(4, 2, 16, 20, [3, 19], "float32")
    moved = (*case[:-1], jnp.array([3, 16]))
    for got, want in zip(fused.self_attention(*case), fused.self_attention(*moved), strict=True):
        np.testing.assert_array_equal(got, want)


@DTYPES
def test_cross_attention(dtype):
    """Filler of an encoding is not looked at, whatever it is."""
    query = random(0, 2, 21, 24, dtype=dtype)
    keys, values = (random(i, 2, 2, 150, 12, dtype=dtype) for i in (1, 2))
    seen = jnp.arange(150) < jnp.array([150, 9])[:, None]
    bias = jnp.where(seen, 0.0, NEG_INF)[:, None, None]
    got = fused.cross_attention(query, keys, values, bias)
    same(got, attended(*wide(query, keys, values, bias)), dtype)


def test_what_a_token_gets_does_not_depend_on_how_many_there_are():
    """Bit for bit, so that greedy tokens do not depend on gamma."""
    x, kernel = random(0, 1, 9, 96), random(1, 96, 40)
    norm = fused.Norm(random(2, 96), None, 1e-6)
    few, many = (fused.product_of_normed(x[:, :n], norm, kernel) for n in (1, 9))
    np.testing.assert_array_equal(few, many[:, :1])
    qkv, keys, values, bias, start = attention_case(9, 2, 16, 160, [124], "float32")
    many, *cache = fused.self_attention(qkv, keys, values, bias, start)
    for t in range(9):  # Its entries are in the cache, or come with it.
        entries = (a.at[:, :, 124 + t :].set(7.0) for a in cache)
        one, *_ = fused.self_attention(
            qkv[:, t : t + 1], *entries, bias[:, :, t : t + 1], start + t
        )
        np.testing.assert_array_equal(one, many[:, t : t + 1])


def model_of(family):
    model = decode_model(EVERY[family], "in_out")
    return model, model.pack(random_params(EVERY[family], 0))


FAMILIES = pytest.mark.parametrize(
    "family",
    ["v1.1", "gpt", "bart", *map(slow, ("v1.0", "gpt_untied", "m2m_100", "marian", "whisper"))],
)


@FAMILIES
def test_log_probabilities(family):
    model, params = model_of(family)
    prompt = prompt_of(model, ragged_inputs(3, 7, 19))
    tokens = jax.random.randint(jax.random.key(1), (3, 6), 0, 19)

    def scored(platform):
        @jax.jit
        def score(params, prompt):
            start = model.start(params, prompt, 8)
            hidden, _ = model.extend(params, start.encoded, start.cache, tokens)
            return jax.nn.log_softmax(model.logits(params, hidden))

        with platforms.compiling_for(platform):
            return score(params, prompt)

    np.testing.assert_allclose(scored(platforms.GPU), scored(UNFUSED), rtol=1e-5, atol=1e-5)


def count_kernels(jaxpr):
    """Those that are not interpreted."""
    kernels = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            kernels += not equation.params["interpret"]
        else:
            kernels += sum(map(count_kernels, jaxprs_in_params(equation.params)))
    return kernels


def kernels_of(platform, model, params, batch=1, count=1):
    """How many there are in a call and its logits."""
    with platforms.compiling_for(platform):
        prompt = prompt_of(model, ragged_inputs(batch, 5, 19))
        start = model.start(params, prompt, 150)

        def call(params, tokens):
            hidden, cache = model.extend(params, start.encoded, start.cache, tokens)
            return model.logits(params, hidden), cache

        jaxpr = jax.make_jaxpr(call)(params, jnp.zeros((batch, count), jnp.int32))
    return count_kernels(jaxpr.jaxpr)


def test_eight_kernels_a_layer():
    """Five of a GPT's, which attends to no encoding; one for the logits."""
    for family, layers in (("v1.1", 2), ("bart", 2), ("m2m_100", 1)):
        model, params = model_of(family)
        assert kernels_of(platforms.GPU, model, params) == layers * 8 + 1
    model, params = model_of("gpt")
    assert kernels_of(platforms.GPU, model, params) == 2 * 5 + 1


def test_what_has_none():
    """The other platforms, many tokens, and kernels in other bits, whose attention is one."""
    model, params = model_of("v1.1")
    for platform in (platforms.CPU, platforms.TPU, UNFUSED):
        assert kernels_of(platform, model, params) == 0
    assert kernels_of(platforms.GPU, model, params, batch=1, count=129) == 0
    assert (
        kernels_of(platforms.GPU, model, model.pack(random_params(model.config, 0), int8=True))
        == 2 * 2
    )
