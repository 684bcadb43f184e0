"""The model drafter: a smaller language model run gamma steps."""

from __future__ import annotations

import dataclasses

import jax
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
        batch = state.pending.shape[0]
        uniforms = (
            jnp.zeros((batch, self.gamma))
            if sampling.greedy
            else random.uniforms(Purpose.PROPOSAL, self.gamma)
        )

        def put(guesses, logits, i):
            """Draws guess i; keeps it, and what it was drawn from unless that is a point mass."""
            distribution = standardize(logits, sampling)
            uniform = jax.lax.dynamic_slice_in_dim(uniforms, i, 1, axis=1)
            new = (draw_from(distribution, uniform), distribution)
            return jax.tree.map(
                lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one, i, axis=1),
                guesses, new[: len(guesses)],
            )  # fmt: skip

        guesses = (jnp.zeros((batch, self.gamma), jnp.int32),)
        if not sampling.greedy:
            guesses += (jnp.zeros((batch, self.gamma, model.vocab_size)),)
        logits, cache = model.extend(params, state.encoded, state.cache, state.pending)
        cache = model.commit(cache, None, state.num_pending)
        guesses = put(guesses, logits[jnp.arange(batch), state.num_pending - 1][:, None], 0)

        def step(i, carry):
            cache, guesses = carry
            token = jax.lax.dynamic_slice_in_dim(guesses[0], i - 1, 1, axis=1)
            logits, cache = model.extend(params, state.encoded, cache, token)
            cache = model.commit(cache, None, jnp.ones_like(state.num_pending))
            return cache, put(guesses, logits, i)

        # A loop, not unrolled: the target's weights have flushed the processor's caches, and code
        # that repeats is fetched once.
        cache, guesses = jax.lax.fori_loop(1, self.gamma, step, (cache, guesses))
        tokens, probs = guesses if len(guesses) == 2 else (guesses[0], None)
        draft = Draft(tokens, probs, Topology.chain(self.gamma))
        return draft, dataclasses.replace(state, cache=cache, last_guess=tokens[:, -1])

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
