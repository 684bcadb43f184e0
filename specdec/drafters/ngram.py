"""The n-gram drafter: a lookup in tables of counts, at next to no cost."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.randomness import draw
from specdec.drafters.ngram_tables import NgramTables, distribution, likeliest
from specdec.types import (
    Draft,
    Encoded,
    Purpose,
    RandomSource,
    SamplingConfig,
    Topology,
    Verdict,
)


@dataclasses.dataclass(frozen=True)
class NgramDrafter:
    """Drafts from an n-gram model of the output tokens alone; its parameters are ``NgramTables``.

    Source: Leviathan et al. 2023, section 3.6 (negligible-cost approximation models). Its state is
    the last tokens emitted, [B, n - 1]. At temperature 0 guesses are point masses on
    the likeliest token; at temperature 1 they are drawn from the tables' distribution, which is
    returned as q.

    Attributes:
      gamma: guesses a block, >= 1.
      order: n, that of the tables.
      start_id: what precedes the first token.
      sampling: temperature 0 or 1, nothing cut off.

    Raises:
      ValueError: gamma < 1, or another sampling.
    """

    gamma: int
    order: int
    start_id: int
    sampling: SamplingConfig

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma must be at least 1, got {self.gamma}.")
        if self.sampling not in (SamplingConfig(0.0), SamplingConfig(1.0)):
            raise ValueError(
                f"n-gram drafts are drawn at temperature 0 or 1 without top-k and top-p, not with "
                f"{self.sampling}; set the draft's own temperature to 0 or 1 (the output's law is "
                "the target's all the same)."
            )

    def init(
        self, params: NgramTables, inputs: Int[Array, "b s"], max_len: int, target: Encoded
    ) -> Array:
        del params, max_len, target
        return jnp.full((inputs.shape[0], self.order - 1), self.start_id, jnp.int32)

    def propose(
        self, params: NgramTables, state: Array, random: RandomSource
    ) -> tuple[Draft, Array]:
        context, tokens, probs = state, [], []
        if not self.sampling.greedy:
            uniforms = random.uniforms(Purpose.PROPOSAL, self.gamma)
        for i in range(self.gamma):
            if self.sampling.greedy:
                token = likeliest(params, context)
            else:
                probs.append(distribution(params, context))
                token = draw(probs[-1], uniforms[:, i])
            tokens.append(token)
            context = jnp.concatenate([context, token[:, None]], axis=1)[:, 1:]
        q = jnp.stack(probs, axis=1) if probs else None
        return Draft(jnp.stack(tokens, axis=1), q, Topology.chain(self.gamma)), state

    def observe(self, state: Array, verdict: Verdict) -> Array:
        history = jnp.concatenate([state, verdict.tokens], axis=1)
        at = verdict.num_emitted[:, None] + jnp.arange(state.shape[1])
        return jnp.take_along_axis(history, at, axis=1)
