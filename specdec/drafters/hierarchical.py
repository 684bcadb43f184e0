"""The hierarchical drafter: a draft model that is itself sampled speculatively, by the engine."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.fields import Whole, checked
from specdec.core.pytrees import pytree
from specdec.core.residuals import write_at
from specdec.core.topology import MOST_NODES
from specdec.decoding.engine import Engine, EngineParams, Scored
from specdec.decoding.state import initial_state
from specdec.drafters.base import ChainDrafter, Drafter, DraftParams, OpenDraft, Opening
from specdec.drafters.copying import Copying
from specdec.drafters.given import Given
from specdec.drafters.guessing import known
from specdec.drafters.model import Checkpoint, draft_spec
from specdec.drafters.ngram import Ngram
from specdec.drafters.pending import Pending, newest_of
from specdec.drafters.quantized import Quantized
from specdec.drafters.random import Random
from specdec.drafters.shape import Chain, Shape, fixed_shape
from specdec.models.base import Model
from specdec.types import (
    DecodeState,
    Draft,
    DrafterState,
    Params,
    PointMass,
    Prompt,
    Purpose,
    RandomSource,
    RuleStates,
    SamplingConfig,
    Start,
    Verdict,
)


@pytree
class HierarchicalState:
    """A hierarchical drafter between blocks."""

    start: Start  # The draft model's encoding, and its cache, which lacks the pending tokens.
    pending: Pending  # After a fully accepted block two: the last guess was never fed.
    # Whether the row emitted anything in the last block; one that did not is finished.
    active: Bool[Array, " b"]
    inner: DrafterState  # The inner drafter's, as it was before the block.
    fed: Int[Array, " b"]  # Guesses of the block under way that the cache holds.


@dataclasses.dataclass(frozen=True)
class _InnerRandom:
    """The uniforms of one inner round: a part of those that the block has for inner purposes."""

    outer: RandomSource
    round: Array
    rounds: int

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        inner = Purpose(purpose + Purpose.INNER_PROPOSAL)
        uniforms = self.outer.uniforms(inner, self.rounds * count)
        return jax.lax.dynamic_slice_in_dim(uniforms, self.round * count, count, axis=1)


@dataclasses.dataclass(frozen=True)
class HierarchicalDrafter(ChainDrafter):
    """Draws gamma guesses from a draft model by speculative decoding with a cheaper inner drafter.

    Blocks of an engine, whose target is the draft model, run until every row has gamma guesses;
    what a block emits beyond them is dropped. Its verification is exact, so guesses follow the
    draft model's own distribution, which is the q that is returned, and the whole stays lossless.
    Parameters are (the model's, ``DraftParams``, and the inner drafter's).

    Source: Leviathan et al. 2023, section 6 (a hierarchical version of the method), with the
    negligible-cost drafts of section 3.6 at the bottom.
    """

    model: Model  # The draft model.
    # Guesses what it will generate, a chain. Its `observe` may depend on what was emitted alone: it
    # is shown each block twice, in the inner rounds and, from the block's start again, as it ended.
    inner: Drafter
    gamma: int

    @property
    def _engine(self) -> Engine:
        return Engine(self.model, self.inner)

    def init(
        self, params: tuple[DraftParams, Params], prompt: Prompt, max_len: int, target: Start
    ) -> HierarchicalState:
        # The block that crosses the limit is drafted whole, its last inner round too.
        capacity = max_len + self.gamma
        own = capacity + self.inner.topology.size + 2
        start = self.model.start(params[0].weights, prompt, own, target.encoded)
        start = dataclasses.replace(start, states=start.states[:, :0])
        active = jnp.ones((prompt.batch_size,), bool)
        inner = self.inner.init(params[1], prompt, capacity, target)
        pending, none = Pending.of(start.last_token, 2), jnp.zeros(active.shape, jnp.int32)
        return HierarchicalState(start, pending, active, inner, none)

    def propose(
        self, params: tuple[DraftParams, Params], state: HierarchicalState, random: RandomSource,
        rules: RuleStates,
    ) -> tuple[Draft, HierarchicalState]:  # fmt: skip
        engine, gamma, greedy = self._engine, self.gamma, params[0].sampling.greedy
        batch, depth = len(state.active), engine.depth
        drawn = EngineParams(params[0].weights, params[0].sampling, params[1])
        start = dataclasses.replace(state.start, last_token=newest_of(state.pending))
        begin = initial_state(
            start, state.inner, row_ids=jnp.where(state.active, 0, -1), limit=gamma, seed=0,
            output_bucket=gamma, pad_id=self.model.pad_id, topology=engine.topology,
            rules=known(params[0], rules), trace=False,
        )  # fmt: skip
        # A row that lacks one guess may get depth + 1.
        probs = jnp.zeros((batch, 0 if greedy else gamma + depth, self.model.vocab_size))

        def block(carry):
            rows, lacking, probs = carry
            uniforms = self._uniforms(random, jnp.max(rows.block))
            draft, rows = engine.propose(drawn, rows, uniforms)
            scored = self._score(drawn, rows, draft, state.pending.tokens[:, :1], lacking)
            verdict = engine.verify(scored, draft, uniforms)
            after, _ = engine.commit(drawn, rows, draft, scored, verdict)
            if not isinstance(scored.distribution, PointMass):
                emitted = after.num_tokens - rows.num_tokens
                probs = write_at(probs, scored.distribution, rows.num_tokens, emitted)
            return after, jnp.zeros_like(lacking), probs

        rows, _, probs = jax.lax.while_loop(
            lambda carry: ~jnp.all(carry[0].finished), block,
            (begin, jnp.where(state.active, state.pending.count - 1, 0), probs),
        )  # fmt: skip
        tokens = rows.tokens[:, :gamma]
        # Nothing is guessed behind EOS, and the last guess is not fed.
        draft = Draft(tokens, None if greedy else probs[:, :gamma], self.topology, rows.num_tokens)
        start = dataclasses.replace(state.start, cache=rows.cache)
        fed = jnp.maximum(rows.num_tokens - 1, 0)
        return draft, dataclasses.replace(state, start=start, fed=fed)

    def _uniforms(self, random: RandomSource, i: Array) -> RandomSource:
        """Random numbers of inner round i; a block has at most gamma rounds."""
        return _InnerRandom(random, i, self.gamma)

    def _score(
        self, params: EngineParams, rows: DecodeState, draft: Draft, token: Int[Array, "b 1"],
        lacking: Int[Array, " b"],
    ) -> Scored:  # fmt: skip
        """Scores a draft; the call also feeds, and commits, a token that a row's cache may lack.

        A call of one token more costs less than a call of its own.

        Args:
          token: the one before the last token of the rows.
          lacking: 1 for a row whose cache lacks it, else 0.
        """
        tokens = jnp.concatenate([rows.last_token[:, None], draft.tokens], axis=1)
        behind = jnp.concatenate([token, tokens], axis=1)
        alone = jnp.concatenate([tokens, tokens[:, -1:]], axis=1)  # Its last one is filler.
        fed = jnp.where(lacking[:, None] > 0, behind, alone)
        hidden, cache = self.model.extend(params.target, rows.encoded, rows.cache, fed)
        at = lacking[:, None] + jnp.arange(tokens.shape[1])
        hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)
        cache = self.model.commit(cache, None, lacking)
        return self._engine.scored(params, rows, draft, hidden, cache)

    def observe(
        self, state: HierarchicalState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> HierarchicalState:
        active = verdict.num_emitted > 0
        # Committed so far: the pending tokens and what was fed; nothing of a row that was finished
        # before the block.
        kept = jnp.where(active, jnp.minimum(verdict.num_accepted, state.fed), 0)
        pending, forgotten = state.pending.observe(verdict, kept)
        excess = jnp.where(state.active, state.fed - kept + forgotten, 0)
        cache = self.model.commit(state.start.cache, None, -excess)
        start = dataclasses.replace(state.start, cache=cache)
        inner = self.inner.observe(state.inner, verdict, states)
        return HierarchicalState(start, pending, active, inner, state.fed)


@checked(named=True)
class Hierarchical:
    """A draft model that is itself sampled speculatively. Its drafts are chains.

    Attributes:
      draft: the draft model, as in :func:`specdec.load_pair`, or the target's copy in few bits.
      inner: the draft of the draft: n-gram tables, copying, given texts or random guesses.
      gamma: guesses of ``inner`` in a round.

    Raises:
      ValueError: a draft that is no model, an inner draft of another kind, or gamma out of range.
    """

    draft: str | os.PathLike | Checkpoint | Quantized
    inner: Ngram | Copying | Given | Random
    gamma: Annotated[int, Whole(1, MOST_NODES)] = 2

    def __post_init__(self):
        if not isinstance(draft_spec("Hierarchical.draft", self.draft), Checkpoint | Quantized):
            raise ValueError(
                "Hierarchical.draft must be a model, by its path or name, or specdec.Quantized(), "
                f"got {self.draft!r}."
            )
        if not isinstance(self.inner, Ngram | Copying | Given | Random):
            raise ValueError(
                "Hierarchical.inner must be one of specdec.Ngram(), Copying(), Given() and "
                f"Random(), whose guesses depend on tokens alone, got {self.inner!r}."
            )
        if isinstance(self.draft, os.PathLike):
            object.__setattr__(self, "draft", os.fspath(self.draft))

    def __str__(self) -> str:
        return f"{self.draft} over {self.inner}"

    def open(self, opening: Opening) -> OpenDraft:
        draft = draft_spec("Hierarchical.draft", self.draft)
        opened, inner = draft.open(opening), self.inner.open(opening)
        loaded = opened.model
        assert loaded

        def make(shape: Shape, catch_up: int) -> HierarchicalDrafter:
            topology = fixed_shape(shape, "a draft of the draft")
            guesses = inner.make(Chain(self.gamma), catch_up)
            return HierarchicalDrafter(loaded.model, guesses, topology.depth)

        def params(sampling: SamplingConfig) -> tuple[DraftParams, Params]:
            return DraftParams(loaded.params, sampling.traced()), inner.params(sampling)

        weights = (loaded.params, inner.weights)
        return OpenDraft(
            make, params, weights, loaded, trees=None, encodes=opened.encodes,
            follows=inner.follows,
        )  # fmt: skip
