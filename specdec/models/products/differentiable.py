"""The product of a network that is trained."""

from __future__ import annotations

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def product(
    x: Float[Array, "b t i"], kernel: Float[Array, "i o"], axes: str = "io"
) -> Float[Array, "b t o"]:
    """x @ kernel in x's dtype; sums, and the kernel's gradient, in float32.

    In bfloat16 XLA's CPU products are several times as fast with sums in float32 where the
    processor multiplies bfloat16 matrices itself (AMX). Differentiating a plain product would
    multiply mixed dtypes, hence the derivative by hand.

    Args:
      axes: "io", or "oi" for a kernel [out, in].
    """
    return cast(Array, _product(x, kernel, axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x, kernel, axes):
    return _float32_sums(f"bti,{axes}->bto", x, kernel.astype(x.dtype)).astype(x.dtype)


def _product_forward(x, kernel, axes):
    return _product(x, kernel, axes), (x, kernel)


def _product_backward(axes, saved, gradient):
    x, kernel = saved
    into_x = _float32_sums(f"bto,{axes}->bti", gradient, kernel.astype(x.dtype))
    into_kernel = _float32_sums(f"bti,bto->{axes}", x, gradient)
    return into_x.astype(x.dtype), into_kernel.astype(kernel.dtype)


_product.defvjp(_product_forward, _product_backward)
_float32_sums = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
