"""The random drafter: guesses without looking, for the bottom of a table."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.topology import AnyTopology
from specdec.drafters.base import OpenDraft, Opening
from specdec.drafters.shape import Shape, fixed_shape
from specdec.types import Draft, Params, Prompt, Purpose, RandomSource, RuleStates, Start, Verdict


@dataclasses.dataclass(frozen=True)
class RandomDrafter:
    """Draws every guess independently and uniformly from the vocabulary: q = 1 / V.

    Source: Leviathan et al. 2023, section 3.6: any distribution will do as a draft.
    """

    topology: AnyTopology
    vocab_size: int  # V.

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Start) -> Array:
        del params, max_len, target
        return jnp.zeros((prompt.batch_size, 0))

    def propose(
        self, params: Params, state: Array, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, Array]:
        del params, rules
        uniforms = random.uniforms(Purpose.PROPOSAL, self.topology.size)
        tokens = (uniforms * self.vocab_size).astype(jnp.int32)
        # float32 rounds a number close to 1 up.
        tokens = jnp.minimum(tokens, self.vocab_size - 1)
        probs = jnp.full((*tokens.shape, self.vocab_size), 1 / self.vocab_size)
        return Draft(tokens, probs, self.topology, independent=True), state

    def observe(self, state: Array, verdict: Verdict, states: Float[Array, "b d1 w"]) -> Array:
        del verdict, states
        return state


@dataclasses.dataclass(frozen=True)
class Random:
    """Draws guesses uniformly from the vocabulary, at any temperature."""

    def __str__(self) -> str:
        return "random"

    def open(self, opening: Opening) -> OpenDraft:
        vocab_size = opening.target.model.vocab_size

        def make(shape: Shape, catch_up: int) -> RandomDrafter:
            del catch_up
            return RandomDrafter(fixed_shape(shape, "random guesses"), vocab_size)

        return OpenDraft(make, lambda sampling: ())
