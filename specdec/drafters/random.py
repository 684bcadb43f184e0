"""The random drafter: guesses without looking, for the bottom of a table."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.drafters.base import OpenDraft, Opening, never_stops
from specdec.types import (
    Draft,
    Encoded,
    Params,
    Prompt,
    Purpose,
    RandomSource,
    SamplingConfig,
    Topology,
    Verdict,
)


@dataclasses.dataclass(frozen=True)
class RandomDrafter:
    """Draws every guess uniformly from the vocabulary: q = 1 / V.

    Source: Leviathan et al. 2023, section 3.6: any distribution will do as a draft.

    Raises:
      ValueError: gamma < 1.
    """

    gamma: int  # Guesses a block, >= 1.
    vocab_size: int  # V.

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma must be at least 1, got {self.gamma}.")

    @property
    def topology(self) -> Topology:
        return Topology.chain(self.gamma)

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Encoded) -> Array:
        del params, max_len, target
        return jnp.zeros((prompt.batch_size, 0))

    def propose(self, params: Params, state: Array, random: RandomSource) -> tuple[Draft, Array]:
        del params
        uniforms = random.uniforms(Purpose.PROPOSAL, self.gamma)
        tokens = (uniforms * self.vocab_size).astype(jnp.int32)
        # float32 rounds a number close to 1 up.
        tokens = jnp.minimum(tokens, self.vocab_size - 1)
        probs = jnp.full((*tokens.shape, self.vocab_size), 1 / self.vocab_size)
        return Draft(tokens, probs, self.topology), state

    def observe(self, state: Array, verdict: Verdict, hidden: Float[Array, "b n1 d"]) -> Array:
        del verdict, hidden
        return state


@dataclasses.dataclass(frozen=True)
class Random:
    """Draws guesses uniformly from the vocabulary, at any temperature."""

    def __str__(self) -> str:
        return "random"

    def open(self, opening: Opening) -> OpenDraft:
        vocab_size = opening.target.model.vocab_size

        def make(gamma: int, stop_below: float) -> RandomDrafter:
            never_stops("A random", stop_below)
            return RandomDrafter(gamma, vocab_size)

        def params(sampling: SamplingConfig) -> Params:
            del sampling
            return ()

        return OpenDraft(make, params)
