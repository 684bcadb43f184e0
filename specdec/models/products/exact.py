"""``few_tokens.py`` with sums that are always in one order, for any number of tokens.

So the bits of a token's logits do not depend on how many tokens a call has, nor on their rows, nor
on how long arrays are. See ``sums.py`` for how. What more it costs is compiling, some small
operations, and long inputs: these are read a few tokens at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.reductions import max_last
from specdec.models.products import few_tokens
from specdec.models.products.few_tokens import (
    ONE_PASS,
    embed,
    encoded_values,
    split,
    tied,
)
from specdec.models.products.few_tokens import SCORES_AT_ONCE as SCORES_AT_ONCE
from specdec.models.products.quantized import LayerKernel
from specdec.models.products.sums import FEW, barrier, in_passes, totals

__all__ = [
    "SCORES_AT_ONCE", "embed", "encoded_values", "in_memory", "inverse_root", "mean", "mean_square",
    "mix", "mix_encoded", "product", "scores", "softmax_parts", "split", "tied",
]  # fmt: skip
_TOKENS = 6  # Of a pass over a kernel; see ``few_tokens.py``.
_QUERIES = 24  # Of a pass over keys or values.


def product(
    kernel: LayerKernel, x: Float[Array, "b t i"], dtype: jnp.dtype | None = None
) -> Float[Array, "b t o"]:
    """The product of x and a packed kernel, in ``dtype``, x's own if None."""
    # Else what makes x is fused into each pass, and rounds otherwise where tokens are left over.
    tokens = barrier(x.reshape(1, -1, x.shape[-1]))
    of = functools.partial(few_tokens.product, kernel, dtype=dtype)
    return barrier(_in_passes(of, tokens, 1, _TOKENS, ONE_PASS)).reshape(*x.shape[:-1], -1)


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    return _by_queries(lambda some: few_tokens.scores(some, keys, FEW), query)


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"]
) -> Float[Array, "b h t k"]:
    """weights values for each row and head."""
    return _by_queries(lambda some: few_tokens.mix(some, values, FEW), weights)


def mix_encoded(
    weights: Float[Array, "b h t s"], values: Float[Array, "b h k s"]
) -> Float[Array, "b h t k"]:
    """:func:`mix` of an encoder's values."""
    return _by_queries(lambda some: few_tokens.mix_encoded(some, values, FEW), weights)


def softmax_parts(*scores: Float[Array, "*shape m"]) -> tuple[list[Array], Array]:
    """A softmax's numerators [..., M], for each of its parts, and their sum [..., 1]."""
    scores = barrier(scores)
    largest = functools.reduce(jnp.maximum, map(max_last, scores))[..., None]
    weights = [barrier(jnp.exp(each - largest)) for each in scores]
    # Behind another part the terms would not lie on the vectors on which they lie alone.
    return weights, functools.reduce(jnp.add, map(_totals, weights))


def mean(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of each token's features, in float32."""
    return _totals(x.astype(jnp.float32)) * (1 / x.shape[-1])


def mean_square(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of the squares of each token's features, in float32."""
    return _totals(jnp.square(barrier(x).astype(jnp.float32))) * (1 / x.shape[-1])


def inverse_root(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / sqrt(x). The processor's own rounds otherwise for one number than for a vector."""
    return 1 / barrier(jnp.sqrt(x))


def in_memory(x: Array) -> Array:
    """x, rounded, as one of two operands of what follows."""
    return barrier(x)


def _totals(x: Float[Array, "*shape n"]) -> Float[Array, "*shape 1"]:
    return totals(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], 1)


def _by_queries(of: Callable[[Array], Array], queries: Array) -> Array:
    return _in_passes(of, queries, 2, _QUERIES, _QUERIES)


def _in_passes(of: Callable[[Array], Array], x: Array, axis: int, size: int, most: int) -> Array:
    """``of`` so many entries along an axis after the other; of at most ``most`` at once."""
    if x.shape[axis] <= most:
        return of(x)

    def some(x: Array) -> Array:
        return jnp.moveaxis(of(jnp.moveaxis(x, 0, axis)), axis, 0)

    return jnp.moveaxis(in_passes(some, jnp.moveaxis(x, axis, 0), size), 0, axis)
