"""The copying drafter: what followed the last tokens elsewhere, in the input or the output."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.types import Draft, Encoded, Params, RandomSource, Topology, Verdict, pytree


@pytree
class CopyingState:
    """The text that can be copied from.

    Attributes:
      text: [B, S + L + slack] a row's input (EOS included), then what it emitted.
      length: [B] tokens of it.
      num_emitted: [B] how many of them were emitted.
      source: [B] where the last guesses were copied from.
    """

    text: Int[Array, "b m"]
    length: Int[Array, " b"]
    num_emitted: Int[Array, " b"]
    source: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class CopyingDrafter:
    """Finds the last emitted tokens earlier in the text and guesses that the same follows.

    The place whose preceding tokens agree with the most of the last ``max_match`` emitted tokens
    wins; among equals, the first one at or after the place where the last copied guess stood, for
    copies run from left to right. Where the text ends first, what is guessed is repeated. Guesses
    are point masses. A row without a place to copy from makes no guess in that block. There are no
    parameters.

    Source: Leviathan et al. 2023, section 3.6 ("copying tokens from the context"); input-guided
    decoding (Yang et al. 2023, LLMA).

    Attributes:
      gamma: guesses a block, >= 1.
      pad_id, eos_id: of the model that is drafted for.
      max_match: most tokens compared, >= 1.

    Raises:
      ValueError: gamma or max_match < 1.
    """

    gamma: int
    pad_id: int
    eos_id: int
    max_match: int = 8

    def __post_init__(self):
        for name in ("gamma", "max_match"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def init(
        self, params: Params, inputs: Int[Array, "b s"], max_len: int, target: Encoded
    ) -> CopyingState:
        del params, target
        batch = inputs.shape[0]
        # gamma + 1: a block that crosses the limit is written whole.
        text = jnp.pad(inputs, ((0, 0), (0, max_len + self.gamma + 1)))
        zeros = jnp.zeros((batch,), jnp.int32)
        return CopyingState(text, jnp.sum(inputs != self.pad_id, axis=1), zeros, zeros)

    def propose(
        self, params: Params, state: CopyingState, random: RandomSource
    ) -> tuple[Draft, CopyingState]:
        del params, random
        text, length = state.text, state.length[:, None]
        size = text.shape[1]
        place = jnp.arange(size)  # Of the first guess; what is before it has to match.
        matched = jnp.zeros(text.shape, jnp.int32)
        agrees = (place > 0) & (place < length)
        for back in range(1, self.max_match + 1):
            wanted = jnp.take_along_axis(text, jnp.maximum(length - back, 0), axis=1)
            before = jnp.pad(text, ((0, 0), (back, 0)))[:, :size]
            agrees &= (before == wanted) & (place >= back) & (back <= state.num_emitted[:, None])
            matched += agrees
        ahead = (place - state.source[:, None]) % size
        best = jnp.argmax(matched * size - ahead, axis=1)
        found = jnp.take_along_axis(matched, best[:, None], axis=1)[:, 0] > 0
        period = jnp.maximum(length - best[:, None], 1)
        at = best[:, None] + jnp.arange(self.gamma) % period
        tokens = jnp.take_along_axis(text, at, axis=1)
        draft = Draft(tokens, None, Topology.chain(self.gamma), jnp.where(found, self.gamma, 0))
        source = jnp.where(found, best, state.source)
        return draft, dataclasses.replace(state, source=source)

    def observe(self, state: CopyingState, verdict: Verdict) -> CopyingState:
        slots = jnp.arange(verdict.tokens.shape[1])
        emitted = slots < verdict.num_emitted[:, None]

        def write(row, new, keep, at):
            old = jax.lax.dynamic_slice(row, (at,), new.shape)
            return jax.lax.dynamic_update_slice(row, jnp.where(keep, new, old), (at,))

        text = jax.vmap(write)(state.text, verdict.tokens, emitted, state.length)
        copied = jnp.take_along_axis(state.text, state.source[:, None] + slots, axis=1, mode="clip")
        agreed = jnp.cumprod(emitted & (copied == verdict.tokens), axis=1)
        return CopyingState(
            text,
            state.length + verdict.num_emitted,
            state.num_emitted + verdict.num_emitted,
            state.source + jnp.sum(agreed, axis=1),
        )
