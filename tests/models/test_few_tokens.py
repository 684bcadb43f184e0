"""The arithmetic for few tokens is the plain one, whatever path it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.compilation import decode_jit
from specdec.models.t5 import few_tokens, plain

_product = decode_jit(static_argnames=())(few_tokens.product)


def _operands(tokens, rows, dtype):
    kernel = jax.random.normal(jax.random.key(0), (rows, 40), dtype)
    return kernel, jax.random.normal(jax.random.key(1), (1, tokens, 40), dtype)


@pytest.mark.parametrize("rows", [48, 33])
@pytest.mark.parametrize("tokens", [*range(1, 10), 16, 17])
def test_equals_the_float64_product(tokens, rows):
    kernel, x = _operands(tokens, rows, jnp.float32)
    expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64).T
    np.testing.assert_allclose(_product(kernel, x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 4, 5, 8])
def test_bfloat16_is_summed_in_float32(tokens):
    kernel, x = _operands(tokens, 48, jnp.bfloat16)
    expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64).T
    out = _product(kernel, x)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=2**-8, atol=2e-3)


def test_rows_of_a_batch_are_tokens_too():
    kernel = jax.random.normal(jax.random.key(0), (48, 40))
    x = jax.random.normal(jax.random.key(1), (2, 2, 40))
    np.testing.assert_allclose(_product(kernel, x), x @ kernel.T, rtol=0, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="CPU compilation options")
def test_cpu_options_keep_barriers_through_fusion():
    @decode_jit(static_argnames=())
    def twice(x):
        return jax.lax.optimization_barrier(x * 2) + 1

    assert "opt-barrier" in twice.jitted.lower(jnp.ones(8)).compile().as_text()


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("batch", [1, 3])
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


def test_mean_square_of_an_odd_number_of_features():
    x = jax.random.normal(jax.random.key(0), (1, 2, 7))
    np.testing.assert_allclose(few_tokens.mean_square(x), plain.mean_square(x), rtol=1e-6)
