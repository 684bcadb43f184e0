"""The model drafter: a smaller language model run gamma steps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec.core.randomness import draw_from
from specdec.core.reductions import softmax_parts
from specdec.core.residuals import take
from specdec.core.standardize import standardize
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Distribution,
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
      num_guesses: [B] guesses of the block under way; its cache holds all of them but the last.
    """

    encoded: Encoded
    cache: Cache
    pending: Int[Array, "b 2"]
    num_pending: Int[Array, " b"]
    last_guess: Int[Array, " b"]
    num_guesses: Int[Array, " b"]


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
      stop_below: a row stops guessing after a guess whose own probability (of the model's most
        likely token, when greedy) is below this. The doubtful guess is KEPT and verified: dropping
        it would make likely tokens likelier than the target has them. 0 never doubts. (A row
        always stops after EOS.)

    Raises:
      ValueError: if gamma < 1 or stop_below is outside [0, 1].
    """

    model: Model
    gamma: int
    sampling: SamplingConfig
    stop_below: float = 0.0

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(
                f"gamma must be at least 1, got {self.gamma}; for plain decoding use "
                'method="autoregressive".'
            )
        if not 0 <= self.stop_below <= 1:
            raise ValueError(f"stop_below must be in [0, 1], got {self.stop_below}.")

    def init(self, params: Params, inputs: Int[Array, "b s"], max_len: int) -> ModelDrafterState:
        batch = inputs.shape[0]
        start = jnp.full((batch, 2), self.model.decoder_start_id, jnp.int32)
        ones = jnp.ones((batch,), jnp.int32)
        # gamma + 1: the block that crosses the limit is drafted whole.
        cache = self.model.init_cache(batch, max_len + self.gamma + 1)
        return ModelDrafterState(
            self.model.encode(params, inputs), cache, start, ones, start[:, 0], ones
        )

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
            """Draws guess i and keeps it with its q, unless that is a point mass.

            Returns:
              the guesses, and which rows go on.
            """
            distribution = standardize(logits, sampling)
            uniform = jax.lax.dynamic_slice_in_dim(uniforms, i, 1, axis=1)
            token = draw_from(distribution, uniform)
            new = (token, distribution)
            guesses = jax.tree.map(
                lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one, i, axis=1),
                guesses, new[: len(guesses)],
            )  # fmt: skip
            return guesses, self._goes_on(logits, distribution, token)

        guesses = (jnp.zeros((batch, self.gamma), jnp.int32),)
        if not sampling.greedy:
            guesses += (jnp.zeros((batch, self.gamma, model.vocab_size)),)
        logits, cache = model.extend(params, state.encoded, state.cache, state.pending)
        cache = model.commit(cache, None, state.num_pending)
        first = logits[jnp.arange(batch), state.num_pending - 1][:, None]
        guesses, going = put(guesses, first, 0)
        count = jnp.ones((batch,), jnp.int32)

        def step(carry):
            i, cache, guesses, going, count = carry
            token = jax.lax.dynamic_slice_in_dim(guesses[0], i - 1, 1, axis=1)
            logits, cache = model.extend(params, state.encoded, cache, token)
            cache = model.commit(cache, None, jnp.ones_like(count))
            guesses, sure = put(guesses, logits, i)
            return i + 1, cache, guesses, going & sure, count + going

        # A loop, not unrolled: the target's weights have flushed the processor's caches, and code
        # that repeats is fetched once. It ends when all rows have stopped.
        made, cache, guesses, _, count = jax.lax.while_loop(
            lambda carry: (carry[0] < self.gamma) & jnp.any(carry[3]),
            step,
            (jnp.int32(1), cache, guesses, going, count),
        )
        tokens, probs = guesses if len(guesses) == 2 else (guesses[0], None)
        # A row that stopped before its neighbours forgets what it was fed since.
        cache = model.commit(cache, None, count - made)
        last = jnp.take_along_axis(tokens, count[:, None] - 1, axis=1)[:, 0]
        draft = Draft(tokens, probs, Topology.chain(self.gamma), count)
        return draft, dataclasses.replace(state, cache=cache, last_guess=last, num_guesses=count)

    def _goes_on(
        self, logits: Array, distribution: Distribution, token: Int[Array, "b 1"]
    ) -> Bool[Array, " b"]:
        """Which rows guess on after ``token``, drawn from ``distribution``."""
        goes_on = token[:, 0] != self.model.eos_id
        if not self.stop_below:
            return goes_on
        if isinstance(distribution, PointMass):
            _, total = softmax_parts(logits)
            probability = 1 / total[:, 0, 0]  # The largest numerator is 1.
        else:
            probability = take(distribution, token)[:, 0]
        return goes_on & (probability >= self.stop_below)

    def observe(self, state: ModelDrafterState, verdict: Verdict) -> ModelDrafterState:
        active = verdict.num_emitted > 0
        all_accepted = verdict.num_accepted == state.num_guesses
        # Committed so far: the pending tokens and all guesses but the last. Keep the accepted ones.
        fed = state.num_guesses - 1
        excess = fed - jnp.minimum(verdict.num_accepted, fed)
        # A finished row also gives its pending tokens back, so that its length stands still.
        excess = jnp.where(active, excess, fed + state.num_pending)
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
