"""Beam search of a batch, with or without guesses of a draft.

One block, for each row:
  1. a draft, if there is one, runs u >= W beams for gamma levels from the W live hypotheses;
  2. the target scores the hypotheses' newest tokens and all guesses, W + u gamma tokens, in one
     call;
  3. :func:`specdec.decoding.beam_rules.step` takes a level after the other, for as long as what
     each of its survivors goes on with has been scored;
  4. the survivors of its last step open the next block.
Tokens that end beams need not be scored. So a block advances 1 to gamma + 1 levels, and tokens,
scores and n-best lists do not depend on what the draft guesses, but for sums that are rounded
otherwise in calls of more tokens. Plain beams have no guesses, and a block is a level.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", appendix A.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree, static_field
from specdec.core.residuals import write_at
from specdec.core.topology import MOST_NODES
from specdec.decoding import beam_rules
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch, refuse_failed
from specdec.decoding.beam_blocks import ENDS, BeamBlock, BeamEngine, Live
from specdec.decoding.beam_rules import BeamConfig, BeamRules, BeamState
from specdec.decoding.blocks import searched_blocks
from specdec.decoding.hypotheses import Hypothesis
from specdec.decoding.state import until_end
from specdec.models.base import LoadedModel
from specdec.rules.base import Rule, Rules
from specdec.types import (
    NAN_OF_MODELS,
    NO_TOKEN,
    AnyArray,
    Cache,
    Encoded,
    Params,
    Prompt,
    Seed,
    Stats,
)

# The rules, the target's parameters and the draft's, () where there is none.
_Parameters = tuple[BeamRules, Params, Params]


@pytree
class BeamResult:
    """The n-best lists of a batch, best first, and the calls that they took.

    Attributes:
      tokens: [B, W, L] EOS included, ``pad_id`` after the end.
      num_tokens: [B, W]; 0 where fewer than W hypotheses ended.
      scores: [B, W] by the rule; -inf where there is no hypothesis.
      log_probs: [B, W] sums of log p, in float32; with rules for logits, as these have it.
      token_log_probs: [B, W, L, 2] log p of each token, as the model has it and as rules made it;
        None unless asked for.
      steps: [B] levels until the row was done.
      failed: [B] whose logits were NaN before that; see :class:`specdec.types.DecodeState`.
      levels: [B, gamma + 2] target calls by the levels that they advanced.
      ends: [B, 4] calls by why their block ended, in the order of :data:`ENDS`.
      trace: blocks along a second axis; None unless asked for. Those of a row end with its first
        one of no levels.
      guesses: of the draft, in each call.
    """

    tokens: Int[Array, "b w l"]
    num_tokens: Int[Array, "b w"]
    scores: Float[Array, "b w"]
    log_probs: Float[Array, "b w"]
    token_log_probs: Float[Array, "b w l 2"] | None
    steps: Int[Array, " b"]
    failed: Int[Array, " b"]
    levels: Int[Array, "b g"]
    ends: Int[Array, "b e"]
    trace: BeamBlock | None
    guesses: int = static_field()

    @property
    def stats(self) -> Stats:
        """Counts as other blocks have them.

        A level is accepted when all its survivors had been guessed, and examined when it is or is
        the one that was missed; ``emitted`` has the tokens of the best hypotheses.
        """
        levels = self.levels[:, 1:]
        calls, accepted = levels.sum(axis=1), levels @ np.arange(levels.shape[1])
        return Stats(
            target_calls=calls, proposed=calls * self.guesses,
            examined=accepted + self.ends[:, ENDS.index("miss")], accepted=accepted,
            emitted=self.num_tokens[:, 0], dropped=0 * calls, accepted_histogram=levels,
            accepted_by_rank=accepted[:, None][:, : levels.shape[1] - 1],
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
    levels: Int[Array, "b g"]  # See `BeamResult`.
    ends: Int[Array, "b e"]
    failed: Int[Array, " b"]
    trace: BeamBlock | None


@dataclasses.dataclass(frozen=True)
class BeamLoop:
    """Beam search as a :class:`specdec.decoding.loop.Loop`.

    Its parameters are the rules, :meth:`BeamConfig.traced` for a bucket of at least the limit, of
    the engine's ``num_beams``, then the target's and the draft's, () without one.
    """

    engine: BeamEngine

    def start(
        self, params: _Parameters, prompt: Prompt, row_ids: Int[AnyArray, " b"],
        limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
    ) -> SearchState:  # fmt: skip
        """The one hypothesis of no tokens; there is nothing random.

        Args:
          row_ids: [B]; a negative id marks a padding row, which is finished from the start.
          limit: tokens a hypothesis may have, EOS included.
          output_bucket: L, size of the output buffers.
          trace: whether every block is kept, if there is a draft.
        """
        del seed
        rules, target, draft = params
        engine, batch = self.engine, len(row_ids)
        beams = beam_rules.initial_state(rules, prompt, limit, output_bucket, engine.target.pad_id)
        beams = dataclasses.replace(beams, finished=beams.finished | (row_ids < 0))
        encoded, live, caches = engine.start(target, draft, prompt, output_bucket)
        return SearchState(
            beams, live, jax.tree.map(jnp.asarray, prompt), encoded, caches,
            levels=jnp.zeros((batch, engine.gamma + 2), jnp.int32),
            ends=jnp.zeros((batch, len(ENDS)), jnp.int32), failed=jnp.zeros((batch,), jnp.int32),
            trace=_no_blocks(engine, batch, output_bucket) if trace and engine.draft else None,
        )  # fmt: skip

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
            after, live, block, failed = engine.replay(rules, beams, live, guesses, logits)
        failed = jnp.where(odd & ~beams.finished, NAN_OF_MODELS, failed)
        trace = state.trace
        if trace is not None:
            at = jnp.sum(state.levels, axis=1)  # Finished rows write behind their last one.
            trace = jax.tree.map(lambda old, new: write_at(old, new[:, None], at), trace, block)
        with jax.named_scope("commit"):
            caches = engine.keep(block, (cache, draft_cache))
        ran = (block.num_levels > 0)[:, None]
        levels = jnp.arange(engine.gamma + 2) == block.num_levels[:, None]
        ends = jnp.arange(len(ENDS)) == block.end[:, None]
        after = dataclasses.replace(after, finished=after.finished | (failed > 0))
        return dataclasses.replace(
            state, beams=after, live=live, caches=caches, levels=state.levels + (levels & ran),
            ends=state.ends + (ends & ran), failed=jnp.maximum(state.failed, failed), trace=trace,
        )  # fmt: skip

    def finished(self, state: SearchState) -> Bool[Array, " b"]:
        """Which rows have ended."""
        return state.beams.finished

    def all_finished(self, state: SearchState) -> SearchState:
        """The state with all rows ended."""
        ended = jnp.ones_like(state.beams.finished)
        return dataclasses.replace(state, beams=dataclasses.replace(state.beams, finished=ended))

    def needs(self, state: SearchState) -> Int[Array, " b"]:
        """The least output bucket for the tokens so far and all levels of a next block."""
        beams = state.beams
        more = jnp.minimum(beams.length + self.engine.gamma + 1, beams.limit)
        return jnp.where(beams.finished, beams.length, more)

    def result(self, params: _Parameters, state: SearchState, size: int) -> BeamResult:
        """The n-best lists, with hypotheses of ``size`` tokens, and the calls they took."""
        tokens, lengths, scores, log_probs, token_log_probs = beam_rules.best_hypotheses(
            params[0], state.beams
        )
        tokens = until_end(tokens, lengths, size, self.engine.target.pad_id)
        if token_log_probs is not None:
            token_log_probs = until_end(token_log_probs, lengths, size)
        return BeamResult(
            tokens, lengths, scores, log_probs, token_log_probs, state.beams.length, state.failed,
            state.levels, state.ends, state.trace, self.engine.guesses,
        )  # fmt: skip


def _no_blocks(engine: BeamEngine, batch: int, output_bucket: int) -> BeamBlock:
    """A trace before the first block, with one more than a row can have for finished rows."""

    def zeros(*size: int) -> Array:
        return jnp.zeros((batch, output_bucket + 1, *size), jnp.int32)

    tokens, survivors = zeros(engine.nodes), zeros(engine.num_beams)
    kept = zeros(engine.gamma + 1, engine.num_beams)
    return BeamBlock(tokens, tokens, kept, zeros(), zeros(), survivors, survivors > 0)


@dataclasses.dataclass(frozen=True)
class BeamDecoder(LoopDecoder[BeamResult]):
    """Searches batches in one way.

    Attributes:
      max_decode_len: tokens a hypothesis may have, EOS included.
      logit_rules: opened for the target; ``rules`` are the same, as they were given.
      log_probs: whether those of each token are kept.
      draft: None for plain beams.
      gamma, draft_beams: with a draft, levels of a block and beams of the draft.
      width: of plain beams, tokens in each call at least; see
        :class:`specdec.decoding.beam_blocks.BeamEngine`.

    Raises:
      ValueError: more beams than there are tokens, fewer of the draft than are kept, or more
        guesses in a block than MOST_NODES.
    """

    target: LoadedModel
    config: BeamConfig
    max_decode_len: int
    logit_rules: Rules = ()
    rules: tuple[Rule, ...] = ()
    log_probs: bool = False
    draft: LoadedModel | None = None
    gamma: int = 0
    draft_beams: int = 0
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
    def seed(self) -> int:
        """Seed 0: nothing is random."""
        return 0

    @property
    def engine(self) -> BeamEngine:
        """The engine of this search."""
        model, kept = self.target.model, self.config.num_beams
        if self.draft is None:
            return BeamEngine(model, kept, width=self.width)
        return BeamEngine(model, kept, self.draft.model, self.draft_beams, self.gamma)

    @property
    def loop(self) -> BeamLoop:
        return BeamLoop(self.engine)

    @property
    def loop_params(self) -> _Parameters:
        draft = self.draft.params if self.draft else ()
        rules = self.config.traced(self.output_bucket, self.logit_rules, self.log_probs)
        return rules, self.target.params, draft

    def outputs(self, result: BeamResult, index: int) -> list[Hypothesis]:
        """The hypotheses of a row, best first, fewer than W where fewer ended."""
        blocks, found = None, []
        if result.trace is not None:
            blocks = searched_blocks(result.trace, index, self.config.num_beams)
        for beam in np.flatnonzero(result.num_tokens[index]):
            length, log_probs = result.num_tokens[index, beam], (None, None)
            if result.token_log_probs is not None:
                log_probs = np.asarray(result.token_log_probs)[index, beam, :length].T
            tokens = np.asarray(result.tokens)[index, beam, :length]
            end = "eos" if tokens[-1] in self.target.model.eos_ids else "limit"
            sums = float(result.scores[index, beam]), float(result.log_probs[index, beam])
            found.append(Hypothesis(tokens, end, None, *sums, *log_probs, blocks=blocks))
        return found

    def check_result(self, batch: Batch, result: BeamResult) -> None:
        source = f"{self.target.source} or of its draft" if self.draft else self.target.source
        failed = result.failed
        if self.rules:  # They may have left a row no hypothesis.
            none = (result.num_tokens[:, 0] == 0) & (batch.row_ids >= 0)
            failed = np.where((failed == 0) & none, NO_TOKEN, failed)
        refuse_failed(batch, failed, result.steps, source, self.rules)


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
    def total(cls, levels: Sequence[np.ndarray], ends: Sequence[np.ndarray]) -> BeamCounts:
        """Adds up those of at least one batch; see :class:`BeamResult`."""
        by_levels, by_end = (np.sum(np.concatenate(each), axis=0) for each in (levels, ends))
        return cls(
            int(by_levels.sum()), tuple(by_levels.tolist()),
            dict(zip(ENDS, by_end.tolist(), strict=True)),
        )  # fmt: skip
