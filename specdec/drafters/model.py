"""The model drafter: a smaller language model run gamma steps."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.randomness import draw_from
from specdec.core.standardize import standardize
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Draft,
    Encoded,
    Params,
    PointMass,
    Purpose,
    RandomSource,
    SamplingConfig,
    Topology,
    Verdict,
    pytree,
)


@pytree
class ModelDrafterState:
    """A model drafter between blocks.

    Attributes:
      encoded: the draft model's view of the inputs.
      cache: holds every emitted token but the pending ones.
      pending: [B, 2] tokens to feed first, left-aligned.
      num_pending: [B] 2 after a fully accepted block, whose last guess was never fed; else 1.
      last_guess: [B] the last guess of the block under way.
    """

    encoded: Encoded
    cache: Cache
    pending: Int[Array, "b 2"]
    num_pending: Int[Array, " b"]
    last_guess: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """Drafts gamma tokens autoregressively from a model.

    The block's first call always feeds two tokens, of which one or two count: after a fully
    accepted block the cache lacks the last guess, and a static T = 2 call costs less than one
    more draft step each block.

    Attributes:
      model: the draft model.
      gamma: guesses a block, >= 1.
      sampling: how guesses are drawn; it may differ from the target's and stay lossless.

    Raises:
      ValueError: if gamma < 1.
    """

    model: Model
    gamma: int
    sampling: SamplingConfig

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(
                f"gamma must be at least 1, got {self.gamma}; for plain decoding use "
                'method="autoregressive".'
            )

    def init(self, params: Params, inputs: Int[Array, "b s"], max_len: int) -> ModelDrafterState:
        batch = inputs.shape[0]
        start = jnp.full((batch, 2), self.model.decoder_start_id, jnp.int32)
        ones = jnp.ones((batch,), jnp.int32)
        # gamma + 1: the block that crosses the limit is drafted whole.
        cache = self.model.init_cache(batch, max_len + self.gamma + 1)
        return ModelDrafterState(self.model.encode(params, inputs), cache, start, ones, start[:, 0])

    def propose(
        self, params: Params, state: ModelDrafterState, random: RandomSource
    ) -> tuple[Draft, ModelDrafterState]:
        model, sampling = self.model, self.sampling
        rows = jnp.arange(state.pending.shape[0])
        uniforms = None if sampling.greedy else random.uniforms(Purpose.PROPOSAL, self.gamma)

        def guess(logits, i):
            distribution = standardize(logits, sampling)
            if uniforms is None:
                return draw_from(distribution, jnp.zeros(())), distribution
            return draw_from(distribution, uniforms[:, i : i + 1]), distribution

        logits, cache = model.extend(params, state.encoded, state.cache, state.pending)
        cache = model.commit(cache, None, state.num_pending)
        token, distribution = guess(logits[rows, state.num_pending - 1][:, None], 0)
        tokens, distributions = [token], [distribution]
        # Unrolled: gamma is small, and on CPU each iteration of an inner loop has its own price.
        for i in range(1, self.gamma):
            logits, cache = model.extend(params, state.encoded, cache, tokens[-1])
            cache = model.commit(cache, None, jnp.ones_like(state.num_pending))
            token, distribution = guess(logits, i)
            tokens.append(token)
            distributions.append(distribution)

        dense = [d for d in distributions if not isinstance(d, PointMass)]
        draft = Draft(
            jnp.concatenate(tokens, axis=1),
            jnp.concatenate(dense, axis=1) if dense else None,
            Topology.chain(self.gamma),
        )
        return draft, dataclasses.replace(state, cache=cache, last_guess=tokens[-1][:, 0])

    def observe(self, state: ModelDrafterState, verdict: Verdict) -> ModelDrafterState:
        active = verdict.num_emitted > 0
        all_accepted = verdict.num_accepted == self.gamma
        # Committed so far: the pending tokens and gamma - 1 guesses. Keep the accepted ones.
        excess = self.gamma - 1 - jnp.minimum(verdict.num_accepted, self.gamma - 1)
        # A finished row also gives its pending tokens back, so that its length stands still.
        excess = jnp.where(active, excess, self.gamma - 1 + state.num_pending)
        cache = self.model.commit(state.cache, None, -excess)
        rows = jnp.arange(verdict.tokens.shape[0])
        newest = verdict.tokens[rows, jnp.maximum(verdict.num_emitted - 1, 0)]
        first = jnp.where(all_accepted, state.last_guess, newest)
        pending = jnp.stack([first, newest], axis=1)
        return dataclasses.replace(
            state,
            cache=cache,
            pending=jnp.where(active[:, None], pending, state.pending),
            num_pending=jnp.where(active, jnp.where(all_accepted, 2, 1), state.num_pending),
        )
