"""The training network's products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models.products.differentiable import product


@pytest.mark.parametrize("axes", ["io", "oi"])
def test_derivatives_are_those_of_the_plain_product(axes):
    keys = jax.random.split(jax.random.key(0), 3)
    x, weights = jax.random.normal(keys[0], (2, 3, 8)), jax.random.normal(keys[1], (2, 3, 5))
    kernel = jax.random.normal(keys[2], (8, 5) if axes == "io" else (5, 8))

    def plain(x, kernel):
        return jnp.einsum(f"bti,{axes}->bto", x, kernel)

    results = [
        (
            f(x, kernel),
            jax.grad(lambda *a, f=f: jnp.sum(weights * f(*a)), argnums=(0, 1))(x, kernel),
        )
        for f in (lambda x, kernel: product(x, kernel, axes), plain)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *results)


@pytest.mark.parametrize("axes", ["io", "oi"])
def test_in_bfloat16_sums_and_the_kernels_gradient_are_float32(axes):
    """256 ones and a 1/2: a bfloat16 sum, or gradient, would lose the half."""
    x = jnp.ones((1, 257, 2), jnp.bfloat16).at[0, 0].set(0.5)
    kernel = jnp.ones((2, 2), jnp.float32)
    gradient = jax.grad(lambda k: jnp.sum(product(x, k, axes).astype(jnp.float32)))(kernel)
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient, np.full((2, 2), 256.5))
    assert product(x, kernel, axes).dtype == jnp.bfloat16
