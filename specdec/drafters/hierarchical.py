"""The hierarchical drafter: a draft model that is itself sampled speculatively."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.standardize import standardize
from specdec.drafters.base import Drafter
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Draft,
    DrafterState,
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
from specdec.verifiers.token import TokenVerifier

_INNER = {
    Purpose.PROPOSAL: Purpose.INNER_PROPOSAL,
    Purpose.ACCEPTANCE: Purpose.INNER_ACCEPTANCE,
    Purpose.FINAL: Purpose.INNER_FINAL,
}
_VERIFIER = TokenVerifier()


@pytree
class HierarchicalState:
    """A hierarchical drafter between blocks.

    Attributes:
      encoded, cache: the draft model's; the cache holds every emitted token but the pending ones.
      pending: [B, 2] tokens to feed first, left-aligned.
      num_pending: [B] 1 or 2 of them.
      last_guess: [B] the last guess of the block under way.
      fed: [B] how many of its guesses the cache holds.
      active: [B] whether the row emitted anything in the last block; one that did not is finished.
      inner: the inner drafter's, as it was before the block.
    """

    encoded: Encoded
    cache: Cache
    pending: Int[Array, "b 2"]
    num_pending: Int[Array, " b"]
    last_guess: Int[Array, " b"]
    fed: Int[Array, " b"]
    active: Array
    inner: DrafterState


@dataclasses.dataclass(frozen=True)
class _InnerRandom:
    """The numbers of one inner round: a part of those that the block has for inner purposes."""

    outer: RandomSource
    round: Array
    rounds: int

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        numbers = self.outer.uniforms(_INNER[purpose], self.rounds * count)
        return jax.lax.dynamic_slice_in_dim(numbers, self.round * count, count, axis=1)


@dataclasses.dataclass(frozen=True)
class HierarchicalDrafter:
    """Draws gamma guesses from a draft model by speculative decoding with a cheaper inner drafter.

    Inner rounds of draft, score and verify run until every row has gamma guesses; what a round
    emits beyond them is dropped. Inner verification is exact, so guesses follow the draft model's
    own law, which is the q that is returned, and the whole stays lossless. Parameters are (the
    model's, the inner drafter's).

    Source: Leviathan et al. 2023, section 6 (a hierarchical version of the method), with the
    negligible-cost drafts of section 3.6 at the bottom.

    Attributes:
      model: the draft model.
      inner: guesses what it will say. Its `observe` may depend on what was emitted alone: it is
        shown each block twice, in the inner rounds and, from the block's start again, as it ended.
      gamma: guesses a block, >= 1.
      sampling: how guesses are drawn; it may differ from the target's and stay lossless.

    Raises:
      ValueError: gamma < 1.
    """

    model: Model
    inner: Drafter
    gamma: int
    sampling: SamplingConfig

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma must be at least 1, got {self.gamma}.")

    def init(
        self,
        params: tuple[Params, Params],
        inputs: Int[Array, "b s"],
        max_len: int,
        target: Encoded,
    ) -> HierarchicalState:
        batch = inputs.shape[0]
        start = jnp.full((batch, 2), self.model.decoder_start_id, jnp.int32)
        ones = jnp.ones((batch,), jnp.int32)
        # The block that crosses the limit is drafted whole, its last inner round too.
        room = max_len + self.gamma
        return HierarchicalState(
            encoded=self.model.encode(params[0], inputs, target),
            cache=self.model.init_cache(batch, room + self.inner.gamma + 2),
            pending=start,
            num_pending=ones,
            last_guess=start[:, 0],
            fed=ones - 1,
            active=jnp.ones((batch,), bool),
            inner=self.inner.init(params[1], inputs, room, target),
        )

    def propose(
        self, params: tuple[Params, Params], state: HierarchicalState, random: RandomSource
    ) -> tuple[Draft, HierarchicalState]:
        model, greedy = self.model, self.sampling.greedy
        batch, inner_gamma = len(state.pending), self.inner.gamma
        room = self.gamma + inner_gamma  # A row short of one guess may get inner_gamma + 1.
        tokens = jnp.zeros((batch, room), jnp.int32)
        probs = jnp.zeros((batch, 0 if greedy else room, model.vocab_size))

        def unfinished(count):
            return state.active & (count < self.gamma)

        def run(carry):
            i, tokens, probs, count, pending, num_pending, cache, inner = carry
            numbers = self._numbers(random, i)
            draft, inner = self.inner.propose(params[1], inner, numbers)
            fed = _after(pending, num_pending, draft.tokens)
            logits, cache = model.extend(params[0], state.encoded, cache, fed)
            at = num_pending[:, None] - 1 + jnp.arange(inner_gamma + 1)
            said = standardize(jnp.take_along_axis(logits, at[..., None], axis=1), self.sampling)
            q = model.over_vocabulary(params[0], said)
            verdict = _VERIFIER(numbers, q, draft)
            emitted = jnp.where(unfinished(count), verdict.num_emitted, 0)
            verdict = dataclasses.replace(verdict, num_emitted=emitted)
            # All that was emitted but the last token is fed now.
            kept = jnp.where(emitted > 0, num_pending + emitted - 1, 0)
            cache = model.commit(cache, None, kept)
            tokens = _write(tokens, verdict.tokens, emitted, count)
            if not isinstance(q, PointMass):
                probs = _write(probs, q, emitted, count)
            newest = jnp.take_along_axis(
                verdict.tokens, jnp.maximum(emitted - 1, 0)[:, None], axis=1
            )
            return (
                i + 1, tokens, probs, count + emitted,
                jnp.where(emitted[:, None] > 0, newest, pending),
                jnp.where(emitted > 0, 1, num_pending),
                cache, self.inner.observe(inner, verdict),
            )  # fmt: skip

        zeros = jnp.zeros((batch,), jnp.int32)
        _, tokens, probs, count, _, _, cache, _ = jax.lax.while_loop(
            lambda carry: jnp.any(unfinished(carry[3])),
            run,
            (jnp.int32(0), tokens, probs, zeros, state.pending, state.num_pending, state.cache,
             state.inner),
        )  # fmt: skip
        tokens = tokens[:, : self.gamma]
        draft = Draft(
            tokens, None if greedy else probs[:, : self.gamma], Topology.chain(self.gamma)
        )
        fed = jnp.maximum(count - 1, 0)
        return draft, dataclasses.replace(state, cache=cache, last_guess=tokens[:, -1], fed=fed)

    def _numbers(self, random: RandomSource, i: Array) -> RandomSource:
        """Those of inner round i; a block has at most gamma rounds."""
        return _InnerRandom(random, i, self.gamma)

    def observe(self, state: HierarchicalState, verdict: Verdict) -> HierarchicalState:
        active = verdict.num_emitted > 0
        # After a fully accepted block the last guess may be one that was never fed.
        lacking = verdict.num_accepted > state.fed
        excess = state.fed - jnp.minimum(verdict.num_accepted, state.fed)
        drafted = state.fed + state.num_pending
        excess = jnp.where(active, excess, jnp.where(state.active, drafted, 0))
        newest = jnp.take_along_axis(
            verdict.tokens, jnp.maximum(verdict.num_emitted - 1, 0)[:, None], axis=1
        )
        first = jnp.where(lacking[:, None], state.last_guess[:, None], newest)
        pending = jnp.concatenate([first, newest], axis=1)
        return dataclasses.replace(
            state,
            cache=self.model.commit(state.cache, None, -excess),
            pending=jnp.where(active[:, None], pending, state.pending),
            num_pending=jnp.where(active, jnp.where(lacking, 2, 1), state.num_pending),
            active=active,
            inner=self.inner.observe(state.inner, verdict),
        )


def _after(
    pending: Int[Array, "b 2"], num_pending: Int[Array, " b"], guesses: Int[Array, "b g"]
) -> Int[Array, "b g2"]:
    """The pending tokens, of which one or two count, and the guesses right behind them."""
    one = jnp.concatenate([pending[:, :1], guesses, guesses[:, -1:]], axis=1)
    two = jnp.concatenate([pending, guesses], axis=1)
    return jnp.where(num_pending[:, None] == 2, two, one)


def _write(rows: Array, new: Array, count: Int[Array, " b"], at: Int[Array, " b"]) -> Array:
    """Puts the first ``count`` of each row's new entries at its place ``at``."""

    def write(row, new, count, at):
        keep = (jnp.arange(len(new)) < count).reshape(-1, *[1] * (new.ndim - 1))
        old = jax.lax.dynamic_slice_in_dim(row, at, len(new))
        return jax.lax.dynamic_update_slice_in_dim(row, jnp.where(keep, new, old), at, axis=0)

    return jax.vmap(write)(rows, new, count, at)
