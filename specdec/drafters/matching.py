"""Where a text has the tokens that were emitted last; drafts that copy go on from there."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec.core.fields import Whole
from specdec.core.topology import Topology

# Most tokens compared: each is an operation of its own in the program.
Compared = Annotated[int, Whole(1, 64)]
NO_TOKEN = -1  # Equals no token of a text.


def check_chains(topology: Topology, name: str) -> None:
    """Raises ValueError for a tree that is not one chain, or several of equal depth."""
    if topology != Topology.branching((topology.siblings, *[1] * (topology.depth - 1))):
        raise ValueError(
            f"{name} continues from several positions: its tree is of chains, such as "
            f"(4, 1, 1), not {topology}."
        )


def matched_lengths(
    text: Int[Array, "b m"], recent: Int[Array, "b n"], possible: Bool[Array, "b m"]
) -> Int[Array, "b m"]:
    """How many of the last emitted tokens stand right before each position of a text.

    Args:
      recent: these tokens, the newest last; :data:`NO_TOKEN` where there were none.
      possible: positions that can be continued from; 0 for the others.
    """
    size, agrees = text.shape[1], possible
    matched = jnp.zeros(text.shape, jnp.int32)
    for back in range(1, recent.shape[1] + 1):
        before = jnp.pad(text, ((0, 0), (back, 0)), constant_values=NO_TOKEN - 1)[:, :size]
        agrees &= before == recent[:, -back, None]
        matched += agrees
    return matched


def best_positions(
    text: Int[Array, "b m"], score: Int[Array, "b m"], count: int
) -> tuple[Int[Array, "b k"], Bool[Array, " b"]]:
    """The positions of the best scores that different tokens follow, and whether there is one.

    Where there are fewer, the first one stands for the others.

    Args:
      score: of each position; below 0 where nothing can be continued from.
      count: K.
    """
    positions, any_found = [], jnp.zeros((len(text),), bool)
    for _ in range(count):
        best = jnp.argmax(score, axis=1)[:, None]
        found = jnp.take_along_axis(score, best, axis=1) >= 0
        any_found |= found[:, 0]
        positions.append(jnp.where(found, best, positions[0]) if positions else best)
        # The next one is to be followed by another token.
        score = jnp.where(text == jnp.take_along_axis(text, best, axis=1), -1, score)
    return jnp.concatenate(positions, axis=1), any_found


def continued_from(
    text: Int[Array, "b m"], positions: Int[Array, "b k"], source: Int[Array, " b"],
    first: Int[Array, " b"],
) -> Int[Array, " b"]:  # fmt: skip
    """Position of the chain that begins with the first emitted token, or of the first chain.

    Args:
      source: that of the first chain.
      first: the text's name of that token.
    """
    if positions.shape[1] == 1:
        return source
    same = jnp.take_along_axis(text, positions, axis=1) == first[:, None]
    best = jnp.argmax(same, axis=1)[:, None]
    here = jnp.take_along_axis(positions, best, axis=1)[:, 0]
    return jnp.where(jnp.any(same, axis=1), here, source)
