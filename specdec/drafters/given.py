"""The drafter of given texts: guesses that the output is a text the user already has."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.fields import checked
from specdec.core.pytrees import pytree
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
from specdec.types import Draft, Params, Prompt, RandomSource, RuleStates, Start, Verdict

# Each token of a text is its id plus 1, so that filler is an end, too; see `Prompt.given`.
_END = 0


@pytree
class GivenState:
    """The texts, and how far the output has come in them."""

    text: Int[Array, "b g"]  # See `Prompt.given`.
    recent: Int[Array, "b n"]  # The last emitted tokens as the text names them, newest last.
    # Where the text goes on, if each emitted token stands for one of the text; an end is possible.
    source: Int[Array, " b"]
    positions: Int[Array, "b k"]  # Where each chain of the block under way begins.


@checked()
class GivenDrafter:
    """Guesses that the output goes on as a given text does.

    The first block guesses the beginning of the first text. Then a block continues the position
    whose preceding tokens agree with the most of the last ``max_match`` emitted tokens, where the
    beginnings of the output and of a text agree, too. Among equals the nearest to the expected
    position wins: where the text goes on if each emitted token stands for one of the text. One
    token alone is found everywhere, so it counts up to ``max_match`` tokens from there. Where
    nothing agrees, the expected position itself is continued: a token was replaced by one that the
    text does not have. Guesses are point masses and end with their text. A row without a text makes
    none. In a tree of K chains each further chain continues the next best position that another
    token follows, in the first block the beginning of another text; if there is none, it is the
    first chain again. There are no parameters.

    Source: Yang et al. 2023, "Inference with Reference" (LLMA); Saxena 2023, prompt lookup.

    Raises:
      ValueError: max_match out of range, or a tree that is no chains.
    """

    topology: Topology  # A chain, or several of equal depth.
    max_match: Compared = 8  # Most tokens compared.

    def __post_init__(self):
        check_chains(self.topology, "Given")

    @property
    def _chains(self) -> int:
        return self.topology.siblings

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Start) -> GivenState:
        del params, max_len, target
        if prompt.given is None:
            raise ValueError(
                "This draft follows texts, and there are none: give generate one for each row, "
                "given=[...], or a run a task that has them."
            )
        text = jnp.asarray(prompt.given)
        recent = jnp.full((len(text), self.max_match), NO_TOKEN, text.dtype).at[:, -1].set(_END)
        first = jnp.ones((len(text),), jnp.int32)
        return GivenState(text, recent, first, jnp.tile(first[:, None], self._chains))

    def propose(
        self, params: Params, state: GivenState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, GivenState]:
        del params, random, rules
        text, source = state.text, state.source[:, None]
        size = text.shape[1]
        position, possible = jnp.arange(size), text != _END
        matched = matched_lengths(text, state.recent, possible)
        distance = jnp.abs(position - source)
        begins = jnp.pad(text, ((0, 0), (1, 0)))[:, :size] == _END
        counts = (matched > 1) | (distance <= self.max_match) | begins
        score = jnp.where((matched > 0) & counts, matched * size - distance, -1)
        score = jnp.where(possible & (distance == 0), jnp.maximum(score, 0), score)
        positions, any_found = best_positions(text, score, self._chains)
        at = [positions + level for level in range(self.topology.depth)]
        guessed = jnp.take_along_axis(text, jnp.concatenate(at, axis=1), axis=1, mode="clip")
        # A chain's guesses behind its text's end are filler.
        levels = guessed.reshape(len(text), -1, self._chains)
        inside = jnp.cumprod(levels != _END, axis=1)
        tokens = jnp.where(inside > 0, levels - 1, 0).reshape(guessed.shape)
        made = self._chains * jnp.sum(jnp.max(inside, axis=2), axis=1)
        guesses = jnp.where(any_found, made, 0)
        source = jnp.where(any_found, positions[:, 0], state.source)
        state = dataclasses.replace(state, source=source, positions=positions)
        return Draft(tokens, None, self.topology, guesses), state

    def observe(
        self, state: GivenState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> GivenState:
        del states
        text, emitted = state.text, verdict.tokens + 1
        source = continued_from(text, state.positions, state.source, emitted[:, 0])
        slots = jnp.arange(emitted.shape[1])
        passed = jnp.take_along_axis(text, source[:, None] + slots, axis=1, mode="clip")
        passed = jnp.cumprod((passed != _END) & (slots < verdict.num_emitted[:, None]), axis=1)
        at = verdict.num_emitted[:, None] + jnp.arange(self.max_match)
        recent = jnp.concatenate([state.recent, emitted], axis=1)
        recent = jnp.take_along_axis(recent, at, axis=1)
        return GivenState(text, recent, source + jnp.sum(passed, axis=1), state.positions)


@checked(named=True)
class Given:
    """Follows texts that are given with the rows: earlier outputs, documents to be edited, guesses.

    A text is followed from its beginning, and found again behind tokens that it does not have. See
    ``given`` of :meth:`specdec.Pair.generate`, and ``given`` of the task ``pairs_file``.

    Attributes:
      max_match: most tokens compared to find the output in a text, in 1..64.
    """

    max_match: Compared = 8

    def __str__(self) -> str:
        return "given texts"

    def open(self, opening: Opening) -> OpenDraft:
        del opening  # Texts are of output tokens already.

        def make(shape: Shape, catch_up: int) -> GivenDrafter:
            del catch_up  # What was emitted is not kept.
            return GivenDrafter(fixed_shape(shape, "given texts"), self.max_match)

        # Tokens of a text are not drawn.
        return OpenDraft(make, lambda sampling: (), trees="chains", independent=False, follows=True)
