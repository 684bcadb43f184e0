"""The arithmetic for few tokens is the plain one, whatever path it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow import slow

from specdec.core.compilation import decode_jit
from specdec.models.products import few_tokens, plain


@decode_jit(static_argnames=())
def _product(kernel, x):
    return few_tokens.product(few_tokens.pack(kernel), x)


def _operands(tokens, size, rows, dtype):
    kernel = jax.random.normal(jax.random.key(0), (size, rows), dtype) * size**-0.5
    return kernel, jax.random.normal(jax.random.key(1), (1, tokens, size), dtype)


# 40 in-features are one chunk, 1056 are three; 48 out-features are read in four places, 50 in two,
# and of 53, which nothing divides, some are left over.
@pytest.mark.parametrize(
    ("size", "rows"), [(40, 53), (1056, 48), slow(40, 48), slow(40, 33), slow(40, 50)]
)
@pytest.mark.parametrize(
    "tokens", [1, 4, 8, 9, 17, *(slow(n) for n in (2, 3, 5, 6, 7, 12, 32, 33))]
)
def test_equals_the_float64_product(tokens, size, rows):
    kernel, x = _operands(tokens, size, rows, jnp.float32)
    expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    np.testing.assert_allclose(_product(kernel, x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("tokens", [3, 8, slow(4), slow(6), slow(7)])
def test_as_many_sums_as_there_are_registers_for(tokens, registers, monkeypatch):
    monkeypatch.setattr(few_tokens, "vector_registers", lambda: registers)
    kernel, x = _operands(tokens, 1056, 48, jnp.float32)
    expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    product = decode_jit(static_argnames=())(lambda kernel, x: few_tokens.product(kernel, x))
    packed = few_tokens.pack(kernel)
    np.testing.assert_allclose(product(packed, x), expected, rtol=0, atol=1e-5)
    at_once = product.jitted(packed, x).lower(packed, x).as_text().count("init:")
    places = {16: {3: 4, 4: 3, 6: 2, 7: 1, 8: 1}, 32: {3: 8, 4: 4, 6: 4, 7: 3, 8: 3}}
    assert at_once == tokens * places[registers][tokens]


def test_rows_that_nothing_divides_are_read_in_several_places(monkeypatch):
    """XLA would take the sum of a token alone apart, as it did with GPT-2's 50,257 logits."""
    monkeypatch.setattr(few_tokens, "vector_registers", lambda: 32)
    kernel, x = _operands(1, 40, 53, jnp.float32)
    packed = few_tokens.pack(kernel)
    lines = _product_of_packed.jitted(packed, x).lower(packed, x).as_text().splitlines()
    reductions = [line for line in lines if "stablehlo.reduce" in line]
    assert [line.count("init:") for line in reductions] == [8]
    assert "x7x40xf32" in reductions[0]  # Some are read twice.


@pytest.mark.parametrize(("tokens", "passes"), [(8, 1), (9, 2), (12, 1), (13, 2), (17, 2), (32, 1)])
def test_more_than_a_few_tokens_are_a_loop(tokens, passes):
    """Beyond eight, and what it leaves over; no kernel of 16 bits is widened into memory."""
    kernel, x = _operands(tokens, 1056, 48, jnp.float16)
    packed, x = few_tokens.pack(kernel), x.astype(jnp.float32)
    text = _product_of_packed.jitted(packed, x).lower(packed, x).as_text()
    assert text.count("stablehlo.reduce") == passes
    assert ("stablehlo.while" in text) == (tokens > 8)
    assert "dot_general" not in text


@decode_jit(static_argnames=())
def _product_of_packed(kernel, x):
    return few_tokens.product(kernel, x)


@pytest.mark.parametrize("tokens", [1, 8, 9, slow(4), slow(5), slow(17)])
def test_bfloat16_is_summed_in_float32(tokens):
    kernel, x = _operands(tokens, 1056, 48, jnp.bfloat16)
    expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    out = _product(kernel, x)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=2**-8, atol=2e-3)


@pytest.mark.parametrize(
    ("size", "chunks"), [(64, 1), (512, 1), (768, 2), (1024, 2), (2816, 8), (521, 1)]
)
def test_chunks_are_equal_and_narrow(size, chunks):
    kernel = jnp.arange(3 * size, dtype=jnp.float32).reshape(size, 3)
    packed = few_tokens.pack(kernel)
    assert packed.shape == (chunks, 3, size // chunks)
    np.testing.assert_array_equal(packed.transpose(0, 2, 1).reshape(size, 3), kernel)


def test_tied_logits_are_products_with_the_embedding():
    embedding = jax.random.normal(jax.random.key(0), (48, 40))
    x = jax.random.normal(jax.random.key(1), (1, 2, 40))
    for ops in (few_tokens, plain):
        found = ops.product(ops.tied(embedding), x)
        np.testing.assert_allclose(found, x @ embedding.T, rtol=0, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="CPU compilation options")
def test_cpu_options_keep_barriers_through_fusion():
    @decode_jit(static_argnames=())
    def twice(x):
        return jax.lax.optimization_barrier(x * 2) + 1

    x = jnp.ones(8)
    assert "opt-barrier" in twice.jitted(x).lower(x).compile().as_text()


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (1, 8), (3, 5),
        *(slow(*shape) for shape in
          [(1, 1), (1, 2), (1, 5), (1, 9), (3, 1), (3, 2), (3, 8), (3, 9)]),
    ],
)  # fmt: skip
def test_attention_and_the_rest_equal_the_plain_ones(batch, tokens):
    keys = jax.random.split(jax.random.key(0), 5)
    query = jax.random.normal(keys[0], (batch, 2, tokens, 6))
    cache = jax.random.normal(keys[1], (batch, 2, 13, 6))
    weights = jax.random.uniform(keys[2], (batch, 2, tokens, 13))
    ids = jax.random.randint(keys[3], (batch, tokens), 0, 13)
    cases = {
        "scores": (query, cache),
        "mix": (weights, cache),
        "embed": (cache[0, 0], ids),
        "mean_square": (query[:, 0],),
    }
    for name, arguments in cases.items():
        fast = decode_jit(static_argnames=())(getattr(few_tokens, name))
        expected = getattr(plain, name)(*arguments)
        np.testing.assert_allclose(fast(*arguments), expected, rtol=1e-5, atol=1e-5, err_msg=name)
    fast = decode_jit(static_argnames=())(few_tokens.mix_encoded)
    found = fast(weights, few_tokens.encoded_values(cache))
    np.testing.assert_allclose(found, plain.mix(weights, cache), rtol=1e-5, atol=1e-5)


def test_mean_square_of_an_odd_number_of_features():
    x = jax.random.normal(jax.random.key(0), (1, 2, 7))
    np.testing.assert_allclose(few_tokens.mean_square(x), plain.mean_square(x), rtol=1e-6)
