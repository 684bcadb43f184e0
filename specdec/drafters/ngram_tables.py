"""N-gram models as arrays: what follows a context, found by hashing inside a jitted loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree, static_field

_FACTOR = np.uint32(0x9E3779B1)  # Knuth's multiplicative hashing.


@pytree
class NgramLevel:
    """Contexts of m tokens, in a hash table with linear probing, and what followed them."""

    # The context in each slot, oldest token first; -1 in an empty one. S is a power of two.
    contexts: Int[Array, "s m"]
    begin: Int[Array, " s"]  # Where the context's successors start in the flat arrays.
    count: Int[Array, " s"]  # How many there are.
    best: Int[Array, " s"]  # The most likely token after it.
    successors: Int[Array, " e"]  # Tokens.
    # What they get; a context's weights sum to less than 1, and the rest goes to the context
    # without its oldest token.
    weights: Float[Array, " e"]
    probes: int = static_field()  # Slots in which a context may be.
    # The largest ``count``; the flat arrays have so many entries to spare at their end.
    width: int = static_field()


@pytree
class NgramTables:
    """An n-gram model with back-off: q(x | c) = weight(c, x) + (1 - sum weight(c, .)) q(x | c').

    c' is c without its oldest token; a context that was never seen has no weights. Source: absolute
    discounting (Ney, Essen, Kneser 1994), made by :func:`specdec.training.ngrams.count_ngrams`.
    """

    unigram: Float[Array, " v"]  # Probabilities.
    best: Int[Array, ""]  # The likeliest token of them.
    levels: tuple[NgramLevel, ...]  # Contexts of 1, 2, ... tokens; none for a unigram model.

    @property
    def order(self) -> int:
        """n: the tokens of an n-gram."""
        return len(self.levels) + 1


def hash_context(context: Any) -> Any:
    """A 32-bit hash [B] of each context [B, m]; NumPy and JAX arrays give the same.

    One token is its own hash: with a slot for each there is nothing to compute and one to look at.
    """
    if context.shape[1] == 1:
        return context[:, 0].astype("uint32")
    value = context[:, 0].astype("uint32") * _FACTOR
    for i in range(1, context.shape[1]):
        value = (value ^ (value >> np.uint32(15)) ^ context[:, i].astype("uint32")) * _FACTOR
    return value ^ (value >> np.uint32(15))


def find(level: NgramLevel, context: Int[Array, "b m"]) -> Int[Array, " b"]:
    """Each context's slot, -1 where it is unknown."""
    size = level.contexts.shape[0]
    first = hash_context(context)[:, None]
    slots = ((first + jnp.arange(level.probes, dtype=jnp.uint32)) % size).astype(jnp.int32)
    same = jnp.all(level.contexts[slots] == context[:, None, :], axis=-1)
    return jnp.max(jnp.where(same, slots, -1), axis=1)


def likeliest(tables: NgramTables, context: Int[Array, "b m"]) -> Int[Array, " b"]:
    """argmax of q(. | context), of which only the last n - 1 tokens matter."""
    best = jnp.broadcast_to(tables.best, context.shape[:1])
    for m, level in enumerate(tables.levels, start=1):
        slot = find(level, context[:, -m:])
        best = jnp.where(slot >= 0, level.best[slot], best)
    return best


def distribution(tables: NgramTables, context: Int[Array, "b m"]) -> Float[Array, "b v"]:
    """q(. | context), of which only the last n - 1 tokens matter."""
    batch = context.shape[0]
    rows = jnp.arange(batch)[:, None]
    probs = jnp.broadcast_to(tables.unigram, (batch, *tables.unigram.shape))
    for m, level in enumerate(tables.levels, start=1):
        slot = find(level, context[:, -m:])
        at = level.begin[slot][:, None] + jnp.arange(level.width)
        used = (slot[:, None] >= 0) & (jnp.arange(level.width) < level.count[slot][:, None])
        weights = jnp.where(used, level.weights[at], 0.0)
        probs = probs * (1 - jnp.sum(weights, axis=1, keepdims=True))
        probs = probs.at[rows, level.successors[at]].add(weights)
    return probs


def make_level(
    contexts: np.ndarray, counts: np.ndarray, best: np.ndarray, successors: np.ndarray,
    weights: np.ndarray,
) -> NgramLevel:  # fmt: skip
    """Puts contexts [R, m] into a hash table.

    It is at most half full, or has a slot for each token if m is 1.

    Args:
      counts: [R] how many of the successors and weights [E] are each context's, in their order.
      best: [R] the most likely token after each.
    """
    size, enough = 2, 2 * len(contexts)
    if contexts.shape[1] == 1:
        enough = int(contexts.max(initial=0)) + 1
    while size < enough:
        size *= 2
    home = np.asarray(hash_context(contexts.astype(np.int32)))
    slots = np.full(len(contexts), -1)
    taken = np.zeros(size, bool)
    probes = 0
    while (waiting := np.flatnonzero(slots < 0)).size:
        wanted = (home[waiting] + np.uint32(probes)) % size
        free, first = np.unique(wanted, return_index=True)
        first = first[~taken[free]]
        slots[waiting[first]] = wanted[first]
        taken[wanted[first]] = True
        probes += 1
    width = int(counts.max(initial=0))

    def place(values, empty):
        table = np.full((size, *values.shape[1:]), empty, np.int32)
        table[slots] = values
        return jnp.asarray(table)

    # A whole window is read at each position.
    tokens = jnp.asarray(np.pad(successors, (0, width)), jnp.int32)
    shares = jnp.asarray(np.pad(weights, (0, width)), jnp.float32)
    begin = place(np.cumsum(counts) - counts, 0)
    return NgramLevel(
        place(contexts, -1), begin, place(counts, 0), place(best, 0), tokens, shares,
        probes=probes, width=width,
    )  # fmt: skip


def of_order(tables: NgramTables, order: int) -> NgramTables:
    """The same counts with shorter contexts.

    Raises:
      ValueError: order is not in 1..the tables' own.
    """
    if not 1 <= order <= tables.order:
        raise ValueError(
            f"These n-gram tables are of order {tables.order}; they have no order {order}."
        )
    return dataclasses.replace(tables, levels=tables.levels[: order - 1])
