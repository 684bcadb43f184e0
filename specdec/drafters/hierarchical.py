"""The hierarchical drafter: a draft model that is itself sampled speculatively."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.residuals import take_position
from specdec.core.standardize import standardize
from specdec.drafters.base import Drafter, OpenDraft, Opening, Sampled, never_stops
from specdec.drafters.copying import Copying
from specdec.drafters.ngram import Ngram
from specdec.drafters.random import Random
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Draft,
    DrafterState,
    Encoded,
    Params,
    PointMass,
    Prompt,
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
    model's, :class:`~specdec.drafters.base.Sampled`, and the inner drafter's).

    Source: Leviathan et al. 2023, section 6 (a hierarchical version of the method), with the
    negligible-cost drafts of section 3.6 at the bottom.

    Attributes:
      model: the draft model.
      inner: guesses what it will generate, a chain. Its `observe` may depend on what was emitted
        alone: it is shown each block twice, in the inner rounds and, from the block's start again,
        as it ended.
      gamma: guesses a block, >= 1.

    Raises:
      ValueError: gamma < 1.
    """

    model: Model
    inner: Drafter
    gamma: int

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma must be at least 1, got {self.gamma}.")

    @property
    def topology(self) -> Topology:
        return Topology.chain(self.gamma)

    def init(
        self, params: tuple[Sampled, Params], prompt: Prompt, max_len: int, target: Encoded
    ) -> HierarchicalState:
        # The block that crosses the limit is drafted whole, its last inner round too.
        room = max_len + self.gamma
        own = room + self.inner.topology.depth + 2
        start = self.model.start(params[0].weights, prompt, own, target)
        ones = jnp.ones((prompt.batch_size,), jnp.int32)
        return HierarchicalState(
            encoded=start.encoded,
            cache=start.cache,
            pending=jnp.stack([start.last_token, start.last_token], axis=1),
            num_pending=ones,
            last_guess=start.last_token,
            fed=ones - 1,
            active=ones > 0,
            inner=self.inner.init(params[1], prompt, room, target),
        )

    def propose(
        self, params: tuple[Sampled, Params], state: HierarchicalState, random: RandomSource
    ) -> tuple[Draft, HierarchicalState]:
        model, weights, sampling = self.model, params[0].weights, params[0].sampling
        batch, inner_gamma = len(state.pending), self.inner.topology.depth
        room = self.gamma + inner_gamma  # A row short of one guess may get inner_gamma + 1.
        tokens = jnp.zeros((batch, room), jnp.int32)
        probs = jnp.zeros((batch, 0 if sampling.greedy else room, model.vocab_size))

        def unfinished(count):
            return state.active & (count < self.gamma)

        def run(carry):
            i, tokens, probs, count, pending, num_pending, cache, inner = carry
            numbers = self._numbers(random, i)
            draft, inner = self.inner.propose(params[1], inner, numbers)
            fed = _after(pending, num_pending, draft.tokens)
            hidden, cache = model.extend(weights, state.encoded, cache, fed)
            at = num_pending[:, None] - 1 + jnp.arange(inner_gamma + 1)
            hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)
            law = standardize(model.logits(weights, hidden), sampling)
            q = model.over_vocabulary(weights, law)
            verdict = _VERIFIER(numbers, q, draft)
            emitted = jnp.where(unfinished(count), verdict.num_emitted, 0)
            verdict = dataclasses.replace(verdict, num_emitted=emitted)
            # All that was emitted but the last token is fed now.
            kept = jnp.where(emitted > 0, num_pending + emitted - 1, 0)
            cache = model.commit(cache, None, kept)
            tokens = _write(tokens, verdict.tokens, emitted, count)
            if not isinstance(q, PointMass):
                probs = _write(probs, q, emitted, count)
            newest = take_position(verdict.tokens, jnp.maximum(emitted - 1, 0))[:, None]
            return (
                i + 1, tokens, probs, count + emitted,
                jnp.where(emitted[:, None] > 0, newest, pending),
                jnp.where(emitted > 0, 1, num_pending),
                cache, self.inner.observe(inner, verdict, hidden),
            )  # fmt: skip

        zeros = jnp.zeros((batch,), jnp.int32)
        _, tokens, probs, count, _, _, cache, _ = jax.lax.while_loop(
            lambda carry: jnp.any(unfinished(carry[3])),
            run,
            (jnp.int32(0), tokens, probs, zeros, state.pending, state.num_pending, state.cache,
             state.inner),
        )  # fmt: skip
        tokens = tokens[:, : self.gamma]
        q = None if sampling.greedy else probs[:, : self.gamma]
        draft = Draft(tokens, q, self.topology)
        fed = jnp.maximum(count - 1, 0)
        return draft, dataclasses.replace(state, cache=cache, last_guess=tokens[:, -1], fed=fed)

    def _numbers(self, random: RandomSource, i: Array) -> RandomSource:
        """Those of inner round i; a block has at most gamma rounds."""
        return _InnerRandom(random, i, self.gamma)

    def observe(
        self, state: HierarchicalState, verdict: Verdict, hidden: Float[Array, "b n1 d"]
    ) -> HierarchicalState:
        active = verdict.num_emitted > 0
        # After a fully accepted block the last guess may be one that was never fed.
        lacking = verdict.num_accepted > state.fed
        excess = state.fed - jnp.minimum(verdict.num_accepted, state.fed)
        drafted = state.fed + state.num_pending
        excess = jnp.where(active, excess, jnp.where(state.active, drafted, 0))
        newest = take_position(verdict.tokens, jnp.maximum(verdict.num_emitted - 1, 0))[:, None]
        first = jnp.where(lacking[:, None], state.last_guess[:, None], newest)
        pending = jnp.concatenate([first, newest], axis=1)
        return dataclasses.replace(
            state,
            cache=self.model.commit(state.cache, None, -excess),
            pending=jnp.where(active[:, None], pending, state.pending),
            num_pending=jnp.where(active, jnp.where(lacking, 2, 1), state.num_pending),
            active=active,
            inner=self.inner.observe(state.inner, verdict, hidden),
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


@dataclasses.dataclass(frozen=True)
class Hierarchical:
    """A draft model that is itself sampled speculatively. Its drafts are chains.

    Attributes:
      draft: the draft model, as in :func:`specdec.load_pair`.
      inner: what guesses its tokens: n-gram tables, copying or random guesses.
      gamma: guesses of ``inner`` in a round.
    """

    draft: str
    inner: Ngram | Copying | Random
    gamma: int = 2

    def __str__(self) -> str:
        return f"{self.draft} over {self.inner}"

    def open(self, opening: Opening) -> OpenDraft:
        loaded, inner = opening.model(self.draft), self.inner.open(opening)

        def make(gamma: int, stop_below: float) -> HierarchicalDrafter:
            never_stops("A hierarchical", stop_below)
            return HierarchicalDrafter(loaded.model, inner.make(self.gamma, 0.0), gamma)

        def params(sampling: SamplingConfig) -> tuple[Sampled, Params]:
            return Sampled(loaded.params, sampling.traced()), inner.params(sampling)

        return OpenDraft(make, params, (loaded.params, inner.weights), loaded)
