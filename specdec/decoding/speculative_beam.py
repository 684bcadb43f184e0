"""Beam search in fewer target calls: a draft's beams guess, and the rules are replayed on them.

One block, for each row:
  1. the draft runs u >= W beams for gamma levels from the W live hypotheses;
  2. the target scores the hypotheses' newest tokens and all guesses, W + u gamma tokens, in one
     call;
  3. :func:`specdec.decoding.beam_rules.step`, which plain beams are made by, takes a level after
     the other, for as long as what each of its survivors goes on with has been scored;
  4. the survivors of its last step open the next block.
Tokens that end beams need not be scored. So a block advances 1 to gamma + 1 levels, and tokens,
scores and n-best lists are those of plain beams whatever the draft guesses, but for sums that are
rounded otherwise in calls of more tokens.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", appendix A.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import write_at
from specdec.core.theory import levels_per_call
from specdec.core.topology import MOST_NODES
from specdec.decoding import beam_rules
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch, refuse_nan
from specdec.decoding.beam import BeamResult, hypotheses_of, refuse_no_hypothesis, result_of
from specdec.decoding.beam_blocks import ENDS, BeamBlock, BeamDraft, BeamEngine, Live
from specdec.decoding.beam_rules import BeamConfig, BeamRules, BeamState
from specdec.decoding.blocks import searched_blocks
from specdec.decoding.hypotheses import Hypothesis
from specdec.models.base import LoadedModel
from specdec.rules.base import Rule, Rules
from specdec.types import NAN_OF_MODELS, AnyArray, Cache, Encoded, Params, Prompt, Seed, Stats

# The rules, the target's parameters and the draft's.
_Parameters = tuple[BeamRules, Params, Params]


@pytree
class BeamStats:
    """Counts of each row.

    Attributes:
      target_calls: [B].
      levels: [B, gamma + 2] calls by the levels that they advanced.
      ends: [B, 4] calls by why their block ended, in the order of :data:`ENDS`.
    """

    target_calls: Int[Array, " b"]
    levels: Int[Array, "b g"]
    ends: Int[Array, "b e"]


@pytree
class SpeculativeBeamResult:
    """Result of plain beams, with the calls and blocks that it took.

    Attributes:
      beams: its ``steps`` count levels.
      counts: of calls.
      proposed: [B] guesses.
      trace: blocks along a second axis; None unless asked for. Those of a row end with its first
        one of no levels.
    """

    beams: BeamResult
    counts: BeamStats
    proposed: Int[Array, " b"]
    trace: BeamBlock | None

    @property
    def stats(self) -> Stats:
        """Counts as other blocks have them.

        A level is accepted when all its survivors had been guessed, and examined when it is or is
        the one that was missed; ``emitted`` has the tokens of the best hypotheses.
        """
        calls, levels = self.counts.target_calls, self.counts.levels[:, 1:]
        accepted = levels @ np.arange(levels.shape[1])
        return Stats(
            target_calls=calls, proposed=self.proposed,
            examined=accepted + self.counts.ends[:, ENDS.index("miss")], accepted=accepted,
            emitted=self.beams.num_tokens[:, 0], dropped=0 * calls,
            accepted_histogram=levels, accepted_by_rank=accepted[:, None],
            acceptance_prob_sum=accepted.astype(np.float32),
        )  # fmt: skip


@pytree
class SearchState:
    """Arrays of a search before a block."""

    beams: BeamState
    live: Live
    prompt: Prompt
    # The target's and the draft's, () where there is none.
    encoded: tuple[Encoded, Encoded]
    caches: tuple[Cache, Cache]
    stats: BeamStats
    nan: Int[Array, " b"]
    trace: BeamBlock | None


@dataclasses.dataclass(frozen=True)
class SpeculativeBeamLoop:
    """The search as a :class:`specdec.decoding.loop.Loop`.

    Its parameters are the rules, :meth:`BeamConfig.traced` for a bucket of at least the limit, of
    the engine's ``num_beams``, then the target's and the draft's, () without one.
    """

    engine: BeamEngine

    def start(
        self, params: _Parameters, prompt: Prompt, row_ids: Int[AnyArray, " b"],
        limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
    ) -> SearchState:  # fmt: skip
        """The one hypothesis of no tokens; arguments as in :meth:`BeamLoop.start`.

        Args:
          trace: whether every block is kept.
        """
        del seed
        rules, target, draft = params
        engine, batch = self.engine, len(row_ids)
        beams = beam_rules.initial_state(rules, prompt, limit, output_bucket, engine.target.pad_id)
        beams = dataclasses.replace(beams, finished=beams.finished | (row_ids < 0))
        encoded, live, caches = engine.start(target, draft, prompt, output_bucket)
        none = jnp.zeros((batch,), jnp.int32)
        stats = BeamStats(
            none, jnp.zeros((batch, engine.gamma + 2), jnp.int32),
            jnp.zeros((batch, len(ENDS)), jnp.int32),
        )  # fmt: skip
        prompt = jax.tree.map(jnp.asarray, prompt)
        blocks = _no_blocks(engine, batch, output_bucket) if trace else None
        return SearchState(beams, live, prompt, encoded, caches, stats, none, blocks)

    def block(self, params: _Parameters, state: SearchState) -> SearchState:
        """Guesses, a target call, and the levels that it is good for."""
        engine, (rules, target, draft), prompt = self.engine, params, state.prompt
        beams, live, (cache, draft_cache) = state.beams, state.live, state.caches
        encoded, draft_encoded = state.encoded
        with jax.named_scope("draft"):
            guesses, draft_cache, odd = engine.guess(
                draft, draft_encoded, prompt, beams, live, draft_cache, rules.logits
            )
        with jax.named_scope("target"):
            logits, cache = engine.score(target, encoded, prompt, beams, live, cache, guesses)
        with jax.named_scope("verify"):
            after, live, block, nan = engine.replay(rules, beams, live, guesses, logits)
        nan = jnp.where(odd & ~beams.finished, NAN_OF_MODELS, nan)
        trace = state.trace
        if trace is not None:
            at = state.stats.target_calls  # Finished rows write behind their last one.
            trace = jax.tree.map(lambda old, new: write_at(old, new[:, None], at), trace, block)
        with jax.named_scope("commit"):
            caches = engine.keep(block, (cache, draft_cache))
        after = dataclasses.replace(after, finished=after.finished | (nan > 0))
        return dataclasses.replace(
            state, beams=after, live=live, caches=caches, stats=_counted(state.stats, block),
            nan=jnp.maximum(state.nan, nan), trace=trace,
        )  # fmt: skip

    def finished(self, state: SearchState) -> Bool[Array, " b"]:
        """Which rows have ended."""
        return state.beams.finished

    def all_finished(self, state: SearchState) -> SearchState:
        """The state with all rows ended."""
        return dataclasses.replace(state, beams=beam_rules.all_finished(state.beams))

    def needs(self, state: SearchState) -> Int[Array, " b"]:
        """The least output bucket for the tokens so far and all levels of a next block."""
        return beam_rules.needs(state.beams, self.engine.gamma + 1)

    def result(self, params: _Parameters, state: SearchState, size: int) -> SpeculativeBeamResult:
        """The n-best lists, with hypotheses of ``size`` tokens, and the calls they took."""
        found = result_of(params[0], state.beams, state.nan, size, self.engine.target.pad_id)
        guesses = state.stats.target_calls * self.engine.guesses
        return SpeculativeBeamResult(found, state.stats, guesses, state.trace)


def _counted(stats: BeamStats, block: BeamBlock) -> BeamStats:
    """Counts with one block more."""
    ran = (block.num_levels > 0)[:, None]
    levels = jnp.arange(stats.levels.shape[1]) == block.num_levels[:, None]
    ends = jnp.arange(len(ENDS)) == block.end[:, None]
    return BeamStats(
        stats.target_calls + ran[:, 0], stats.levels + (levels & ran), stats.ends + (ends & ran)
    )


def _no_blocks(engine: BeamEngine, batch: int, output_bucket: int) -> BeamBlock:
    """A trace before the first block, with one more than a row can have for finished rows."""

    def zeros(*size: int) -> Array:
        return jnp.zeros((batch, output_bucket + 1, *size), jnp.int32)

    tokens, survivors = zeros(engine.nodes), zeros(engine.num_beams)
    kept = zeros(engine.gamma + 1, engine.num_beams)
    return BeamBlock(tokens, tokens, kept, zeros(), zeros(), survivors, survivors > 0)


@dataclasses.dataclass(frozen=True)
class SpeculativeBeamDecoder(LoopDecoder[SpeculativeBeamResult]):
    """Searches batches in one way.

    Attributes:
      draft: None for plain beams in the same layout, with ``width`` tokens in each call: see
        :class:`specdec.decoding.beam_blocks.BeamEngine`.
      gamma, draft_beams: levels of a block and beams of the draft.
      max_decode_len: tokens a hypothesis may have, EOS included.

    Raises:
      ValueError: more beams than there are tokens, fewer of the draft than are kept, or more
        guesses in a block than MOST_NODES.
    """

    target: LoadedModel
    draft: LoadedModel | None
    config: BeamConfig
    gamma: int
    draft_beams: int
    max_decode_len: int
    width: int = 0
    logit_rules: Rules = ()
    log_probs: bool = False  # Whether those of each token are kept.
    rules: tuple[Rule, ...] = ()  # The same, as they were given.

    def __post_init__(self):
        size, kept = self.target.model.vocab_size, self.config.num_beams
        for name, count in (("num_beams", kept), ("draft_beams", self.draft_beams)):
            if count > size:
                raise ValueError(f"{name} is {count}, more than the vocabulary's {size} tokens.")
        if self.draft is None:
            return
        if self.draft_beams < kept:
            raise ValueError(
                f"draft_beams must be at least num_beams = {kept}, got {self.draft_beams}."
            )
        tokens = self.draft.most_tokens
        if tokens is not None and self.draft_beams > tokens:
            raise ValueError(
                f"The draft ({self.draft.source}) generates {tokens} different tokens, those of "
                f"its draft_vocabulary.json, which is fewer than draft_beams = {self.draft_beams}. "
                "Give fewer draft_beams (and num_beams), or remove that file."
            )
        if self.draft_beams * self.gamma > MOST_NODES:
            raise ValueError(
                f"A block has at most {MOST_NODES} guesses; draft_beams = {self.draft_beams} and "
                f"gamma = {self.gamma} make {self.draft_beams * self.gamma}. Lower one of them."
            )

    @property
    def engine(self) -> BeamEngine:
        """The engine of this search."""
        draft = self.draft and BeamDraft(self.draft.model, self.draft_beams, self.gamma)
        return BeamEngine(self.target.model, draft, self.config.num_beams, self.width)

    @property
    def seed(self) -> int:
        """Seed 0: nothing is random."""
        return 0

    @property
    def loop(self) -> SpeculativeBeamLoop:
        return SpeculativeBeamLoop(self.engine)

    @property
    def loop_params(self) -> _Parameters:
        draft = self.draft.params if self.draft else ()
        rules = self.config.traced(self.output_bucket, self.logit_rules, self.log_probs)
        return rules, self.target.params, draft

    def outputs(self, result: SpeculativeBeamResult, index: int) -> list[Hypothesis]:
        model, blocks = self.target.model, None
        if result.trace is not None:
            blocks = searched_blocks(result.trace, index, self.config.num_beams)
        return hypotheses_of(result.beams, index, model.eos_ids, blocks)

    def check_result(self, batch: Batch, result: SpeculativeBeamResult) -> None:
        source = f"{self.target.source} or of its draft"
        refuse_nan(batch, result.beams.nan, result.beams.steps, source, self.rules)
        refuse_no_hypothesis(batch, result.beams, self.rules)


@dataclasses.dataclass(frozen=True)
class BeamCounts:
    """Totals over rows.

    Attributes:
      target_calls: of all rows.
      levels: calls that advanced 0, 1, ..., gamma + 1 levels.
      ends: calls by why their block ended, of :data:`specdec.decoding.beam_blocks.ENDS`.
    """

    target_calls: int
    levels: tuple[int, ...]
    ends: dict[str, int]

    @classmethod
    def total(cls, parts: Iterable[BeamStats]) -> BeamCounts:
        """Adds up at least one batch's, of NumPy arrays."""
        parts = list(parts)
        ends = sum(np.sum(part.ends, axis=0) for part in parts)
        levels = sum(np.sum(part.levels, axis=0) for part in parts)
        return cls(
            sum(int(np.sum(part.target_calls)) for part in parts),
            tuple(np.asarray(levels).tolist()),
            dict(zip(ENDS, np.asarray(ends).tolist(), strict=True)),
        )

    @property
    def levels_per_call(self) -> float:
        """Calls of plain beams, which have one level each, over these calls."""
        return levels_per_call(self.levels, len(self.levels) - 2)
