"""Several samples of each text: rows that share its encoding, and have their own randomness.

The n samples of a text are n rows behind each other: B texts have B n rows. In what a loop returns
they are an axis of their own, [B, n, ...].
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specdec.types import DecodeResult, DecodeState, Stats

S = TypeVar("S")


def sampled(state: DecodeState, count: int) -> DecodeState:
    """The state before the first block of ``count`` samples of each row.

    The first sample has the row's own random numbers.
    """

    def keys(key: Array) -> Array:
        # A row's key is folded with its blocks from 0 on, which never meet these.
        last = jnp.uint32(2**32 - 1) - jnp.arange(count - 1, dtype=jnp.uint32)
        others = jax.vmap(lambda number: jax.random.fold_in(key, number))(last)
        return jnp.concatenate([key[None], others])

    found = jax.vmap(keys)(state.row_keys).reshape(-1)
    return dataclasses.replace(repeated(state, count), row_keys=found)


def repeated(state: S, count: int) -> S:
    """Each row ``count`` times.

    What is called ``encoded`` anywhere in a state stays: models share each of its rows among those
    that follow each other (see :meth:`specdec.models.base.Model.extend`). Scalars stay, too.
    """

    def rows(path: tuple[Any, ...], leaf: Array) -> Array:
        if not leaf.ndim or jax.tree_util.GetAttrKey("encoded") in path:
            return leaf
        return jnp.repeat(leaf, count, axis=0)

    return jax.tree_util.tree_map_with_path(rows, state)


def by_text(leaves: S, count: int) -> S:
    """Arrays of rows, [B n, ...], as arrays of texts, [B, n, ...]."""

    def split(leaf: Array) -> Array:
        return leaf.reshape(len(leaf) // count, count, *leaf.shape[1:])

    return jax.tree.map(split, leaves)


def samples_of(result: DecodeResult, index: int, count: int) -> list[DecodeResult]:
    """A text's samples, each without the axes of texts and samples."""
    text = jax.tree.map(lambda leaf: leaf[index], result)
    if count == 1:
        return [text]
    return [jax.tree.map(lambda leaf, i=i: leaf[i], text) for i in range(count)]


def rows_of(stats: Stats) -> Stats:
    """Counts of texts and their samples as those of rows."""
    rows, axes = stats.emitted.size, stats.emitted.ndim
    return jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[axes:]), stats)
