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

from specdec.core.compilation import decode_jit
from specdec.core.theory_beams import levels_per_call
from specdec.decoding import beam_rules
from specdec.decoding.batches import Batch, bucket, refuse_nan
from specdec.decoding.beam import BeamResult, Hypothesis
from specdec.decoding.beam_blocks import ENDS, BeamBlock, BeamDraft, BeamEngine, Live
from specdec.decoding.beam_rules import BeamConfig, BeamRules, BeamState
from specdec.models.base import LoadedModel
from specdec.pytrees import pytree
from specdec.topology import MOST_NODES
from specdec.types import AnyArray, Cache, Encoded, Params, Prompt, Stats


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
    """Like plain beams, with what it took.

    Attributes:
      beams: its ``steps`` count levels.
      counts: of calls.
      proposed: [B] guesses.
      trace: blocks, with a leading axis of L; None unless asked for. Those of a row end with its
        first one of no levels.
    """

    beams: BeamResult
    counts: BeamStats
    proposed: Int[Array, " b"]
    trace: BeamBlock | None

    def row(self, index: int, count: int) -> list[Hypothesis]:
        """See :meth:`specdec.decoding.beam.BeamResult.row`."""
        return self.beams.row(index, count)

    @property
    def stats(self) -> Stats:
        """The same counts as of other blocks.

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
class _Loop:
    """What a block needs."""

    beams: BeamState
    live: Live
    caches: tuple[Cache, Cache]  # The draft's is () where there is none.
    stats: BeamStats
    nan: Bool[Array, " b"]
    block: Int[Array, ""]
    trace: BeamBlock | None


def _block(
    engine: BeamEngine, rules: BeamRules, params: tuple[Params, Params], prompt: Prompt,
    encoded: tuple[Encoded, Encoded], loop: _Loop,
) -> _Loop:  # fmt: skip
    """Guesses, a target call, and the levels that it is good for."""
    beams, live, (cache, draft_cache) = loop.beams, loop.live, loop.caches
    with jax.named_scope("draft"):
        guesses, draft_cache, odd = engine.guess(
            params[1], encoded[1], prompt, beams, live, draft_cache
        )
    with jax.named_scope("target"):
        logits, cache = engine.score(params[0], encoded[0], prompt, beams, live, cache, guesses)
    with jax.named_scope("verify"):
        after, live, block, nan = engine.replay(rules, beams, live, guesses, logits)
    nan |= odd & ~beams.finished
    trace = loop.trace
    if trace is not None:
        trace = jax.tree.map(lambda old, new: old.at[loop.block].set(new), trace, block)
    with jax.named_scope("commit"):
        caches = engine.keep(block, (cache, draft_cache))
    return _Loop(
        dataclasses.replace(after, finished=after.finished | nan), live,
        caches, _counted(loop.stats, block), loop.nan | nan, loop.block + 1, trace,
    )  # fmt: skip


def _counted(stats: BeamStats, block: BeamBlock) -> BeamStats:
    """With one block more."""
    ran = (block.num_levels > 0)[:, None]
    levels = jnp.arange(stats.levels.shape[1]) == block.num_levels[:, None]
    ends = jnp.arange(len(ENDS)) == block.end[:, None]
    return BeamStats(
        stats.target_calls + ran[:, 0], stats.levels + (levels & ran), stats.ends + (ends & ran)
    )


def _no_blocks(engine: BeamEngine, batch: int) -> BeamBlock:
    """A trace before the first block."""

    def zeros(*size: int) -> Array:
        return jnp.zeros((engine.output_bucket, batch, *size), jnp.int32)

    tokens, survivors = zeros(engine.nodes), zeros(engine.num_beams)
    kept = zeros(engine.gamma + 1, engine.num_beams)
    return BeamBlock(tokens, tokens, kept, zeros(), zeros(), survivors, survivors > 0)


@decode_jit(static_argnames=("engine", "trace"))
def search(
    engine: BeamEngine, rules: BeamRules, params: tuple[Params, Params], prompt: Prompt,
    row_ids: Int[AnyArray, " b"], limit: Int[Array, ""] | int, *, trace: bool = False,
) -> SpeculativeBeamResult:  # fmt: skip
    """Searches a batch, the whole of it in one ``lax.while_loop``.

    Rows advance and end apart; a row's hypotheses do not depend on its neighbours.

    Args:
      rules: :meth:`BeamConfig.traced` of the engine's ``output_bucket``, and its ``num_beams``.
      params: the target's and the draft's, () without one.
      trace: whether every block is kept.
      All else: see :func:`specdec.decoding.beam.search`.
    """
    batch, output_bucket, pad_id = len(row_ids), engine.output_bucket, engine.target.pad_id
    beams = beam_rules.initial_state(rules, batch, limit, output_bucket, pad_id)
    beams = dataclasses.replace(beams, finished=beams.finished | (row_ids < 0))
    encoded, live, caches = engine.start(*params, prompt)
    none = jnp.zeros((batch,), jnp.int32)
    stats = BeamStats(
        none, jnp.zeros((batch, engine.gamma + 2), jnp.int32),
        jnp.zeros((batch, len(ENDS)), jnp.int32),
    )  # fmt: skip
    blocks = _no_blocks(engine, batch) if trace else None
    loop = jax.lax.while_loop(
        lambda loop: ~jnp.all(loop.beams.finished),
        lambda loop: _block(engine, rules, params, prompt, encoded, loop),
        _Loop(beams, live, caches, stats, none > 0, jnp.int32(0), blocks),
    )
    tokens, lengths, scores, log_probs = beam_rules.best_hypotheses(rules, loop.beams)
    inside = jnp.arange(output_bucket) < lengths[..., None]
    tokens = jnp.where(inside, tokens, pad_id)
    found = BeamResult(tokens, lengths, scores, log_probs, loop.beams.length, loop.nan)
    guesses = loop.stats.target_calls * engine.guesses
    return SpeculativeBeamResult(found, loop.stats, guesses, loop.trace)


@dataclasses.dataclass(frozen=True)
class SpeculativeBeamDecoder:
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
        """What does it."""
        draft = self.draft and BeamDraft(self.draft.model, self.draft_beams, self.gamma)
        return BeamEngine(
            self.target.model, draft, self.config.num_beams, bucket(self.max_decode_len),
            self.width,
        )  # fmt: skip

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The program of :meth:`search` for such a batch, to be compiled in any thread."""
        return search.lower(*self._arguments(batch), self.max_decode_len, trace=False)

    def _arguments(
        self, batch: Batch
    ) -> tuple[BeamEngine, BeamRules, tuple[Params, Params], Prompt, AnyArray]:
        prompt, row_ids = self.target.place_rows((batch.prompt, batch.row_ids))
        engine = self.engine
        params = self.target.params, self.draft.params if self.draft else ()
        return engine, self.config.traced(engine.output_bucket), params, prompt, row_ids

    def search(
        self, batch: Batch, *, limit: int | None = None, trace: bool = False
    ) -> SpeculativeBeamResult:
        """Searches a batch and brings the result to the host as NumPy arrays.

        Args:
          limit: see :meth:`specdec.decoding.beam.BeamDecoder.search`.

        Raises:
          ValueError: the mesh cannot cut the batch into equal parts; logits are NaN (it names the
            row).
        """
        most = self.max_decode_len if limit is None else limit
        result = search(*self._arguments(batch), most, trace=trace)
        result = jax.tree.map(np.asarray, result)
        refuse_nan(
            batch, result.beams.nan, result.beams.steps, f"{self.target.source} or of its draft"
        )
        return result


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
        """How many times fewer calls than those of plain beams, which have one level each."""
        return levels_per_call(self.levels, len(self.levels) - 2)


@dataclasses.dataclass(frozen=True)
class SearchedBlock:
    """One block of one row, for people to look at.

    Attributes:
      guesses: the draft's tokens, of each level.
      survivors: what the live hypotheses went on with, of each level that was taken.
      lost: those of the last level that had not been guessed, if that ended the block.
      end: why it ended, of :data:`specdec.decoding.beam_blocks.ENDS`.
    """

    guesses: list[list[int]]
    survivors: list[list[int]]
    lost: list[int]
    end: str


def searched_blocks(trace: BeamBlock, row: int, wide: int) -> list[SearchedBlock]:
    """One row's blocks out of a trace.

    Args:
      wide: W.
    """
    found = []
    gamma = trace.kept.shape[2] - 1
    for number in range(len(trace.num_levels)):
        count = int(trace.num_levels[number, row])
        if not count:
            break
        tokens, kept, newest = (
            np.asarray(leaf[number, row]) for leaf in (trace.tokens, trace.kept, trace.newest)
        )
        end = ENDS[int(trace.end[number, row])]
        lost = newest[np.asarray(trace.lost[number, row])].tolist() if end == "miss" else []
        survivors = [*tokens[kept[1:count]].tolist(), newest.tolist()]
        guesses = tokens[wide:].reshape(gamma, -1).tolist() if gamma else []
        found.append(SearchedBlock(guesses, survivors, lost, end))
    return found
