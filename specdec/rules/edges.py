"""Which tokens may follow which state, and where they lead: a finite automaton in arrays.

Most states have few edges, which are found in a sorted list; the few that allow many have a bit for
each token. So a trie of millions of nodes takes a few numbers a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree, static_field
from specdec.rules.base import RowStart
from specdec.types import AnyArray

_DEAD = -1  # Behind a token that was not allowed: all that follows is never emitted.
_LEAST_WIDE = 64  # Edges of a state with a bit for each token, at least.


@pytree
class Edges:
    """The automaton, an :class:`~specdec.rules.base.OpenRule`. A row begins in state 0.

    Attributes:
      first: [S + 1] the first edge of each state.
      tokens: [E] sorted within each state.
      targets: [E] the states that they lead to.
      wide: [S] the index of a state's bits, or -1.
      bits: [W, V / 32] the tokens of states with many edges.
      narrow: the most edges of any other state.
      most: the most edges of any state.
      vocab_size: V.
    """

    first: Int[AnyArray, " s1"]
    tokens: Int[AnyArray, " e"]
    targets: Int[AnyArray, " e"]
    wide: Int[AnyArray, " s"]
    bits: Int[AnyArray, "w u"]
    narrow: int = static_field()
    most: int = static_field()
    vocab_size: int = static_field()

    def init(self, row: RowStart) -> Int[Array, ""]:
        del row
        return jnp.int32(0)

    def allow(self, state: Int[Array, ""], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        return jnp.where(self._allowed(state) | (state == _DEAD), logits, -jnp.inf)

    def _allowed(self, state: Int[Array, ""]) -> Bool[Array, " v"]:
        state = jnp.maximum(state, 0)
        first, last = jnp.asarray(self.first)[state], jnp.asarray(self.first)[state + 1]
        edges = first + jnp.arange(self.narrow)
        tokens = jnp.asarray(self.tokens).at[edges].get(mode="fill", fill_value=self.vocab_size)
        tokens = jnp.where(edges < last, tokens, self.vocab_size)
        found = jnp.zeros((self.vocab_size,), bool).at[tokens].set(True, mode="drop")
        if not len(self.bits):
            return found
        index = jnp.asarray(self.wide)[state]
        words = jnp.asarray(self.bits)[jnp.maximum(index, 0)]
        bits = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
        return jnp.where(index >= 0, bits.reshape(-1)[: self.vocab_size] > 0, found)

    def advance(self, state: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        known = jnp.maximum(state, 0)
        tokens, first = jnp.asarray(self.tokens), jnp.asarray(self.first)
        low, end = first[known], first[known + 1]

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            smaller = tokens[jnp.minimum(middle, len(tokens) - 1)] < token
            inside = low < high
            return (
                jnp.where(inside & smaller, middle + 1, low),
                jnp.where(inside & ~smaller, middle, high),
            )

        steps = math.ceil(math.log2(self.most + 1)) + 1
        edge, _ = jax.lax.fori_loop(0, steps, halve, (low, end))
        at = jnp.minimum(edge, len(tokens) - 1)
        there = (edge < end) & (tokens[at] == token) & (state != _DEAD)
        return jnp.where(there, jnp.asarray(self.targets)[at], _DEAD)


def edges_of(
    sources: np.ndarray, tokens: np.ndarray, targets: np.ndarray, states: int, vocab_size: int
) -> Edges:
    """The automaton with these edges.

    Args:
      sources, tokens, targets: [E] integers; at most one edge for each source and token.
    """
    order = np.lexsort((tokens, sources))
    sources, tokens, targets = (
        np.asarray(each, np.int32)[order] for each in (sources, tokens, targets)
    )
    counts = np.bincount(sources, minlength=states)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    # A state's bits take no more memory than its list of edges does.
    many = np.flatnonzero(counts > max(_LEAST_WIDE, vocab_size // 32))
    wide = np.full(states, -1, np.int32)
    wide[many] = np.arange(len(many))
    flags = np.zeros((len(many), -(-vocab_size // 32) * 32), bool)
    for index, state in enumerate(many):
        flags[index, tokens[first[state] : first[state + 1]]] = True
    words = np.packbits(flags, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    narrow = int(np.max(np.where(wide < 0, counts, 0), initial=0))
    return Edges(
        first, tokens, targets, wide, words, narrow, int(np.max(counts, initial=0)), vocab_size
    )


def trie(sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The edges of the trie of some sequences, none of them empty, and its number of states."""
    lengths = np.array([len(each) for each in sequences], np.int64)
    padded = np.full((len(sequences), int(lengths.max())), -1, np.int32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(sequences)
    padded = padded[np.lexsort(padded.T[::-1])]
    sources, tokens, targets, states = [], [], [], 1
    above = np.zeros(len(padded), np.int64)  # The state of each sequence's beginning.
    new = np.concatenate([[True], np.zeros(len(padded) - 1, bool)])
    for column in padded.T:
        new = new | np.concatenate([[True], column[1:] != column[:-1]])
        starts = new & (column >= 0)
        here = states - 1 + np.cumsum(starts)
        sources.append(above[starts])
        tokens.append(column[starts])
        targets.append(here[starts])
        above = np.where(column >= 0, here, -1)
        states += int(starts.sum())
    return np.concatenate(sources), np.concatenate(tokens), np.concatenate(targets), states
