"""``few_tokens.py`` for any number of tokens, so that each one's bits are the same in all."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.models.products import few_tokens
from specdec.models.products.few_tokens import (
    QUERIES_AT_ONCE,
    embed,
    encoded_values,
    in_memory,
    inverse_root,
    mean,
    mean_square,
    softmax_parts,
    split,
    tied,
)
from specdec.models.products.quantized import LayerKernel
from specdec.models.products.sums import in_passes

__all__ = [
    "SCORES_AT_ONCE", "embed", "encoded_values", "in_memory", "inverse_root", "mean", "mean_square",
    "mix", "mix_encoded", "product", "scores", "softmax_parts", "split", "tied",
]  # fmt: skip
SCORES_AT_ONCE = few_tokens.SCORES_AT_ONCE
_TOKENS = 6  # Of a pass; see ``few_tokens.py``.


def product(
    kernel: LayerKernel, x: Float[Array, "b t i"], dtype: jnp.dtype | None = None
) -> Float[Array, "b t o"]:
    """The product of x and a packed kernel, in ``dtype``, x's own if None."""
    tokens = x.reshape(1, -1, x.shape[-1])
    pass_of = functools.partial(few_tokens.product, kernel, dtype=dtype)
    return _in_passes(pass_of, tokens, 1, _TOKENS).reshape(*x.shape[:-1], -1)


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    return _in_passes(lambda query: few_tokens.scores(query, keys), query, 2, QUERIES_AT_ONCE)


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"]
) -> Float[Array, "b h t k"]:
    """weights values for each row and head."""
    return _in_passes(lambda weights: few_tokens.mix(weights, values), weights, 2, QUERIES_AT_ONCE)


def mix_encoded(
    weights: Float[Array, "b h t s"], values: Float[Array, "b h k s"]
) -> Float[Array, "b h t k"]:
    """:func:`mix` of an encoder's values."""
    pass_of = functools.partial(few_tokens.mix_encoded, values=values)
    return _in_passes(pass_of, weights, 2, QUERIES_AT_ONCE)


def _in_passes(of: Callable[[Array], Array], x: Array, axis: int, size: int) -> Array:
    """``of`` some entries along an axis after the other."""
    if x.shape[axis] <= few_tokens.ONE_PASS:
        return of(x)

    def some(x: Array) -> Array:
        return jnp.moveaxis(of(jnp.moveaxis(x, 0, axis)), axis, 0)

    return jnp.moveaxis(in_passes(some, jnp.moveaxis(x, axis, 0), size), 0, axis)
