"""Reductions over the last axis that stay one loop on CPU.

XLA's CPU compiler hands a reduction of one operand to a library with threads of its own, or
rewrites it into several. In a decode step the data are small and whatever runs is new to the
processor's caches, so both cost several times the work itself. A reduction of two operands, here
the two halves, it leaves as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specdec.core import platforms

_NOTHING = -80.0  # exp of it times any number of tokens is lost beside 1 in float32.


def sum_last(x: Array) -> Array:
    """The sum over the last axis; [..., N] -> [...]."""
    return _reduce(x, jnp.sum, jnp.add, jnp.zeros((), x.dtype))


def max_last(x: Array) -> Array:
    """The largest over the last axis; [..., N] -> [...]."""
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return _reduce(x, jnp.max, jnp.maximum, jnp.asarray(lowest, x.dtype))


def min_last(x: Array) -> Array:
    """The smallest over the last axis; [..., N] -> [...]."""
    highest = jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).max
    return _reduce(x, jnp.min, jnp.minimum, jnp.asarray(highest, x.dtype))


def softmax_parts(logits: Array) -> tuple[Array, Array]:
    """A softmax's numerators [..., N] and their sum [..., 1], of finite numbers and -inf."""
    return sum_parts(jnp.exp(logits - max_last(logits)[..., None]))


def log_sum_exp(logits: Array) -> Array:
    """log of the sum of exp over the last axis, of numbers and -inf; [..., N] -> [...].

    On CPU exp of -inf takes ten times as long as of numbers, and so do results below float32's
    normal ones. What stands for them adds nothing to a sum that has a 1.
    """
    largest = max_last(logits)
    finite = jnp.where(largest > -jnp.inf, largest, 0)
    total = sum_last(jnp.exp(jnp.maximum(logits - finite[..., None], _NOTHING)))
    return jnp.where(largest > -jnp.inf, finite + jnp.log(total), largest)


def sum_parts(weights: Array) -> tuple[Array, Array]:
    """Weights [..., N], computed once and kept in memory, and their sum [..., 1]."""
    if _one_loop(weights):
        weights = jax.lax.optimization_barrier(weights)
    return weights, sum_last(weights)[..., None]


def _one_loop(x: Array) -> bool:
    return platforms.current() == platforms.CPU and x.shape[-1] > 1


def _reduce(x: Array, plain: Callable, combine: Callable, start: Array) -> Array:
    if not _one_loop(x):
        return plain(x, axis=-1)
    half = x.shape[-1] // 2
    halves = (x[..., :half], x[..., half : 2 * half])
    parts = jax.lax.reduce(halves, (start, start), _pairwise(combine), (x.ndim - 1,))
    whole = combine(*jax.lax.optimization_barrier(parts))
    return combine(whole, x[..., -1]) if x.shape[-1] % 2 else whole


@functools.cache  # JAX knows compiled code by the identity of its functions.
def _pairwise(combine: Callable) -> Callable:
    return lambda a, b: (combine(a[0], b[0]), combine(a[1], b[1]))
