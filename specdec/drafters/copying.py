"""The copying drafter: tokens that followed the last ones before, in the input or the output."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.fields import checked
from specdec.core.pytrees import pytree
from specdec.core.residuals import write_at
from specdec.core.topology import Topology
from specdec.drafters.base import OpenDraft, Opening
from specdec.drafters.matching import (
    NO_TOKEN,
    Compared,
    best_positions,
    check_chains,
    continued_from,
    matched_lengths,
)
from specdec.drafters.shape import Shape, fixed_shape
from specdec.models import filler
from specdec.types import Draft, Params, Prompt, RandomSource, RuleStates, Start, Verdict


@pytree
class CopyingState:
    """The text that can be copied from."""

    # A row's input (EOS included), then what the decoder has read and emitted, without the start
    # token that follows an input.
    text: Int[Array, "b m"]
    length: Int[Array, " b"]  # Tokens of it.
    num_decoded: Int[Array, " b"]  # How many of them are the decoder's: what is continued.
    source: Int[Array, " b"]  # Where the last copied guess that was emitted stood.
    positions: Int[Array, "b k"]  # Where each chain of the block under way was copied from.


@checked()
class CopyingDrafter:
    """Finds the last emitted tokens earlier in the text and guesses that the same follows.

    The position whose preceding tokens agree with the most of the last ``max_match`` emitted tokens
    wins; among equals, the first one at or after the position of the last copied guess, for
    copies run from left to right. Where the text ends first, the guesses repeat. They are point
    masses. A row without a position to copy from makes no guess in that block. In a tree of K
    chains, each further chain continues the next best position that another token follows; if
    there is none, it is the first chain again. There are no parameters.

    Source: Leviathan et al. 2023, section 3.6 ("copying tokens from the context"); input-guided
    decoding (Yang et al. 2023, LLMA).

    Raises:
      ValueError: max_match out of range, or a tree that is no chains.
    """

    topology: Topology  # A chain, or several of equal depth.
    max_match: Compared = 8  # Most tokens compared.
    catch_up: int = 0  # Tokens that a block may emit, where other drafts guess more in a row.

    def __post_init__(self):
        check_chains(self.topology, "Copying")

    @property
    def _chains(self) -> int:
        return self.topology.siblings

    @property
    def _depth(self) -> int:
        return self.topology.depth

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Start) -> CopyingState:
        del params, target
        # Behind an input the decoder begins with a start token, which is no text.
        first = 1 if prompt.inputs.shape[1] else 0
        prefix, known = prompt.prefix[:, first:], prompt.prefix_lengths - first
        inputs, given = prompt.tokens, prompt.input_lengths
        if inputs.shape[1] == 0:  # Features are no tokens.
            given = jnp.zeros_like(given)
        # A block that crosses the limit is written whole.
        sizes = inputs.shape[1], prefix.shape[1]
        capacity = sum(map(filler.shared, sizes)) + max_len + max(self._depth + 1, self.catch_up)
        text = jnp.pad(inputs, ((0, 0), (0, capacity - sizes[0])))
        if prefix.shape[1]:
            text = write_at(text, prefix, given)
        length = given + known
        nowhere = jnp.zeros_like(length)
        return CopyingState(text, length, known, nowhere, jnp.tile(nowhere[:, None], self._chains))

    def propose(
        self, params: Params, state: CopyingState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, CopyingState]:
        del params, random, rules
        text, length = state.text, state.length[:, None]
        size = text.shape[1]
        back = jnp.arange(self.max_match, 0, -1)
        recent = jnp.take_along_axis(text, jnp.maximum(length - back, 0), axis=1)
        recent = jnp.where(back <= state.num_decoded[:, None], recent, NO_TOKEN)
        position = jnp.arange(size)  # Of the first guess; the tokens before it have to match.
        matched = matched_lengths(text, recent, position < length)
        ahead = (position - state.source[:, None]) % size
        score = jnp.where(matched > 0, matched * size - ahead, -1)
        positions, any_found = best_positions(text, score, self._chains)
        period = jnp.maximum(length - positions, 1)
        at = [positions + level % period for level in range(self._depth)]
        tokens = jnp.take_along_axis(text, jnp.concatenate(at, axis=1), axis=1)
        guesses = jnp.where(any_found, self.topology.size, 0)
        source = jnp.where(any_found, positions[:, 0], state.source)
        state = dataclasses.replace(state, source=source, positions=positions)
        return Draft(tokens, None, self.topology, guesses), state

    def observe(
        self, state: CopyingState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> CopyingState:
        del states
        slots = jnp.arange(verdict.tokens.shape[1])
        emitted = slots < verdict.num_emitted[:, None]
        text = write_at(state.text, verdict.tokens, state.length, verdict.num_emitted)
        source = continued_from(state.text, state.positions, state.source, verdict.tokens[:, 0])
        copied = jnp.take_along_axis(state.text, source[:, None] + slots, axis=1, mode="clip")
        agreed = jnp.cumprod(emitted & (copied == verdict.tokens), axis=1)
        more, source = verdict.num_emitted, source + jnp.sum(agreed, axis=1)
        return CopyingState(
            text, state.length + more, state.num_decoded + more, source, state.positions
        )


@checked(named=True)
class Copying:
    """Copies the tokens that followed the last ones in the input or the output so far.

    Attributes:
      max_match: most tokens compared, in 1..64.
    """

    max_match: Compared = 8

    def __str__(self) -> str:
        return "copying"

    def open(self, opening: Opening) -> OpenDraft:
        model = opening.target.model
        if model.input_vocab_size != model.vocab_size:
            raise ValueError(
                "Copying guesses tokens of the text, and this target's texts have another "
                "vocabulary than its outputs: choose another draft."
            )

        def make(shape: Shape, catch_up: int) -> CopyingDrafter:
            return CopyingDrafter(fixed_shape(shape, "copying"), self.max_match, catch_up)

        # Copied tokens are not drawn.
        return OpenDraft(make, lambda sampling: (), trees="chains", independent=False)
