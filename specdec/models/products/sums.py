"""Sums whose bits depend on what is summed alone, on CPU.

With fast math the compiler takes a sum in the order that it finds fastest, and that depends on what
stands beside it: on how many sums run in one loop, on sizes, on what is fused. Three things settle
it. A loop that keeps at least :data:`FEW` sums at once is vectorised in one way, each sum in one
vector whose lanes are added at its end. So zeros behind the terms change nothing either, as long as
they fill whole vectors. A sum or a product of three numbers has a barrier between its two
operations, so that they stay in their order. And what is rounded to fewer bits is kept in memory:
within a loop the compiler may leave the rounding out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

FEW = 8  # Sums in a loop, at least.
VECTOR = 16  # Numbers of the widest vectors.
barrier = jax.lax.optimization_barrier


def sums(pairs: Sequence[tuple[Float[Array, ...], Float[Array, ...]]], axis: int) -> list[Array]:
    """The sum of a * b over ``axis`` for each pair, in float32: one loop, one variadic reduction.

    XLA rewrites a reduction of a single operand into several; one of two or more it leaves whole.
    With :data:`FEW` pairs or more each has the same bits as with others beside it.
    """
    return _reduced([a.astype(jnp.float32) * b.astype(jnp.float32) for a, b in pairs], axis)


def totals(terms: Float[Array, "n m"]) -> Float[Array, " n"]:
    """The sum of each row."""
    # Of one vector there is no loop.
    terms = jnp.pad(terms, ((0, 0), (0, max(2 * VECTOR - terms.shape[1], 0))))
    terms, cut = barrier(terms), Cut.of(len(terms), min(len(terms), FEW))
    found = _reduced(with_others(cut.parts(terms, 0), FEW), 1)[: len(cut.begins)]
    return jnp.concatenate(cut.own(found, 0))


def with_others(terms: Sequence[Array], count: int) -> list[Array]:
    """Terms, and more of them that only keep a loop busy, up to so many.

    They differ: of sums that are there twice the compiler keeps one.
    """
    if len(terms) >= count:
        return list(terms)
    factors = 2.0 ** np.arange(1, 1 + count - len(terms))
    others = terms[0] * factors.astype(terms[0].dtype).reshape(-1, *[1] * terms[0].ndim)
    return [*terms, *barrier(others)]


def _reduced(terms: Sequence[Array], axis: int) -> list[Array]:
    return barrier(jax.lax.reduce(terms, [jnp.zeros(())] * len(terms), _add, (axis,)))


def _add(a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
    return [u + v for u, v in zip(a, b, strict=True)]


@dataclasses.dataclass(frozen=True)
class Cut:
    """Parts of equal size along an axis, all different; each may overlap the one before it."""

    begins: tuple[int, ...]
    size: int  # Of each.

    @classmethod
    def of(cls, size: int, parts: int) -> Cut:
        """``size`` entries in at most as many parts."""
        each, gaps = -(-size // parts), max(parts - 1, 1)
        return cls(tuple(i * (size - each) // gaps for i in range(parts)), each)

    def parts(self, whole: Array, axis: int) -> list[Array]:
        """The parts of an array."""
        return [
            jax.lax.slice_in_dim(whole, begin, begin + self.size, axis=axis)
            for begin in self.begins
        ]

    def own(self, parts: Sequence[Array], axis: int) -> list[Array]:
        """The parts without what those before them have: together they are the whole."""
        found, end = [], 0
        for part, begin in zip(parts, self.begins, strict=True):
            new, end = begin + self.size - end, begin + self.size
            if new == self.size:
                found.append(part)
            elif new:
                found.append(jax.lax.slice_in_dim(part, self.size - new, self.size, axis=axis))
        return found


def in_passes(of: Callable[[Any], Array], x: Any, size: int) -> Float[Array, "t ..."]:
    """``of`` each ``size`` entries, one pass after the other, and of those that are left over.

    Not unrolled, for XLA allocates something for each operand of each reduction whenever a program
    is called: an encoder's passes, one after the other, were most of them.

    Args:
      x: arrays [T, ...] with more than ``size`` entries.
    """
    count = len(jax.tree.leaves(x)[0])
    whole = count // size * size
    tiles = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, size, *leaf.shape[1:]), x)
    passes = jax.lax.map(of, tiles)
    out = passes.reshape(whole, *passes.shape[2:])
    if whole == count:
        return out
    return jnp.concatenate([out, of(jax.tree.map(lambda leaf: leaf[whole:], x))])
