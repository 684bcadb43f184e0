"""The copying drafter: what followed the last tokens elsewhere, in the input or the output."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.residuals import write_at
from specdec.drafters.base import Chain, OpenDraft, Opening, never_stopping
from specdec.types import (
    Draft,
    Encoded,
    Params,
    Prompt,
    RandomSource,
    Verdict,
    pytree,
)


@pytree
class CopyingState:
    """The text that can be copied from."""

    # A row's input (EOS included), then what the decoder has read and emitted, without the start
    # token that follows an input.
    text: Int[Array, "b m"]
    length: Int[Array, " b"]  # Tokens of it.
    num_decoded: Int[Array, " b"]  # How many of them are the decoder's: what is continued.
    source: Int[Array, " b"]  # Where the last guesses were copied from.


@dataclasses.dataclass(frozen=True)
class CopyingDrafter(Chain):
    """Finds the last emitted tokens earlier in the text and guesses that the same follows.

    The place whose preceding tokens agree with the most of the last ``max_match`` emitted tokens
    wins; among equals, the first one at or after the place where the last copied guess stood, for
    copies run from left to right. Where the text ends first, what is guessed is repeated. Guesses
    are point masses. A row without a place to copy from makes no guess in that block. There are no
    parameters.

    Source: Leviathan et al. 2023, section 3.6 ("copying tokens from the context"); input-guided
    decoding (Yang et al. 2023, LLMA).

    Raises:
      ValueError: max_match < 1.
    """

    gamma: int
    max_match: int = 8  # Most tokens compared, >= 1.

    def __post_init__(self):
        super().__post_init__()
        if self.max_match < 1:
            raise ValueError(f"max_match must be at least 1, got {self.max_match}.")

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Encoded) -> CopyingState:
        del params, target
        # Behind an input the decoder begins with a start token, which is no text.
        first = 1 if prompt.inputs.shape[1] else 0
        prefix, known = prompt.prefix[:, first:], prompt.prefix_lengths - first
        # gamma + 1: a block that crosses the limit is written whole.
        room = prefix.shape[1] + max_len + self.gamma + 1
        text = jnp.pad(prompt.inputs, ((0, 0), (0, room)))
        if prefix.shape[1]:
            text = write_at(text, prefix, prompt.input_lengths)
        length = prompt.input_lengths + known
        return CopyingState(text, length, known, jnp.zeros_like(length))

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
            agrees &= (before == wanted) & (place >= back) & (back <= state.num_decoded[:, None])
            matched += agrees
        ahead = (place - state.source[:, None]) % size
        best = jnp.argmax(matched * size - ahead, axis=1)
        found = jnp.take_along_axis(matched, best[:, None], axis=1)[:, 0] > 0
        period = jnp.maximum(length - best[:, None], 1)
        at = best[:, None] + jnp.arange(self.gamma) % period
        tokens = jnp.take_along_axis(text, at, axis=1)
        draft = Draft(tokens, None, self.topology, jnp.where(found, self.gamma, 0))
        source = jnp.where(found, best, state.source)
        return draft, dataclasses.replace(state, source=source)

    def observe(
        self, state: CopyingState, verdict: Verdict, hidden: Float[Array, "b n1 d"]
    ) -> CopyingState:
        del hidden
        slots = jnp.arange(verdict.tokens.shape[1])
        emitted = slots < verdict.num_emitted[:, None]
        text = write_at(state.text, verdict.tokens, state.length, verdict.num_emitted)
        copied = jnp.take_along_axis(state.text, state.source[:, None] + slots, axis=1, mode="clip")
        agreed = jnp.cumprod(emitted & (copied == verdict.tokens), axis=1)
        more, source = verdict.num_emitted, state.source + jnp.sum(agreed, axis=1)
        return CopyingState(text, state.length + more, state.num_decoded + more, source)


@dataclasses.dataclass(frozen=True)
class Copying:
    """Copies what followed the last tokens in the input or the output so far.

    Attributes:
      max_match: most tokens compared.
    """

    max_match: int = 8

    def __str__(self) -> str:
        return "copying"

    def open(self, opening: Opening) -> OpenDraft:
        del opening
        make = never_stopping("A copying", lambda gamma: CopyingDrafter(gamma, self.max_match))
        return OpenDraft(make, lambda sampling: ())  # What is copied is not drawn.
