"""Beam search of a batch: one target call a token for all hypotheses of all rows.

The rules are in :mod:`specdec.decoding.beam_rules`; here are the calls. A hypothesis is a row of
the model's cache: row b * W + w is beam w of row b. What is encoded of the inputs is shared by the
W rows that follow each other, and never copied. The newest token of each hypothesis is not yet in
the cache: it opens the next call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.topology import CHAIN
from specdec.decoding import beam_rules
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch, refuse_nan, refuse_stuck
from specdec.decoding.beam_rules import BeamConfig, BeamRules, BeamState
from specdec.decoding.blocks import SearchedBlock
from specdec.decoding.hypotheses import Hypothesis
from specdec.models.base import LoadedModel, Model
from specdec.rules.base import Rule, Rules
from specdec.types import AnyArray, Cache, Encoded, Params, Prompt, Seed, Stats


@pytree
class BeamResult:
    """The n-best lists of a batch, best first.

    Attributes:
      tokens: [B, W, L] EOS included, ``pad_id`` after the end.
      num_tokens: [B, W]; 0 where fewer than W hypotheses ended.
      scores: [B, W] by the rule; -inf where there is no hypothesis.
      log_probs: [B, W] sums of log p, in float32; with rules for logits, as these have it.
      token_log_probs: [B, W, L, 2] log p of each token, as the model has it and as rules made it;
        None unless asked for.
      steps: [B] target calls until the row was done.
      nan: [B] whose logits were NaN before that; see :class:`specdec.types.DecodeState`.
    """

    tokens: Int[Array, "b w l"]
    num_tokens: Int[Array, "b w"]
    scores: Float[Array, "b w"]
    log_probs: Float[Array, "b w"]
    token_log_probs: Float[Array, "b w l 2"] | None
    steps: Int[Array, " b"]
    nan: Int[Array, " b"]

    @property
    def stats(self) -> Stats:
        """Counts of plain decoding: target calls, and the tokens of the best hypotheses."""
        none: Any = 0 * self.steps
        names = ("proposed", "examined", "accepted", "dropped")
        counts: dict[str, Any] = dict.fromkeys(names, none)
        return Stats(
            **counts, target_calls=self.steps, emitted=self.num_tokens[:, 0],
            accepted_histogram=self.steps[:, None],
            accepted_by_rank=none[:, None][:, : CHAIN.siblings],
            acceptance_prob_sum=none.astype(np.float32),
        )  # fmt: skip


@pytree
class SearchState:
    """Arrays of a search before a target call."""

    beams: BeamState
    last_token: Int[Array, "b w"]  # Of each live hypothesis; not yet in the cache.
    encoded: Encoded
    cache: Cache
    nan: Int[Array, " b"]


def follow(model: Model, cache: Cache, parents: Int[Array, "b w"]) -> Cache:
    """The cache of hypotheses whose parents are given; nothing is copied where none moved."""
    still = jnp.all(parents == jnp.arange(parents.shape[1]))
    return jax.lax.cond(still, lambda cache: cache, lambda c: model.select(c, parents), cache)


@dataclasses.dataclass(frozen=True)
class BeamLoop:
    """Beam search as a :class:`specdec.decoding.loop.Loop`: a block is a target call.

    Its parameters are the rules, :meth:`BeamConfig.traced` for a bucket of at least the limit, and
    the target's.
    """

    target: Model

    def start(
        self, params: tuple[BeamRules, Params], prompt: Prompt, row_ids: Int[AnyArray, " b"],
        limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
    ) -> SearchState:  # fmt: skip
        """The one hypothesis of no tokens; there is nothing random and nothing to trace.

        Args:
          row_ids: [B]; a negative id marks a padding row, which is finished from the start.
          limit: tokens a hypothesis may have, EOS included.
          output_bucket: L, size of the output buffers.
        """
        del seed, trace
        rules, weights = params
        batch, width, target = len(row_ids), rules.num_beams, self.target
        start = target.start(weights, prompt, output_bucket + 1)
        beams = beam_rules.initial_state(rules, prompt, limit, output_bucket, target.pad_id)
        return SearchState(
            dataclasses.replace(beams, finished=beams.finished | (row_ids < 0)),
            jnp.broadcast_to(start.last_token[:, None], (batch, width)),
            start.encoded,
            target.select(start.cache, jnp.zeros((batch, width), jnp.int32)),
            jnp.zeros((batch,), jnp.int32),
        )

    def block(self, params: tuple[BeamRules, Params], state: SearchState) -> SearchState:
        """One target call, and one step of the rules."""
        (rules, weights), target = params, self.target
        batch, width = state.last_token.shape
        with jax.named_scope("target"):
            hidden, cache = target.extend(
                weights, state.encoded, state.cache, state.last_token.reshape(batch * width, 1)
            )
            cache = target.commit(cache, None, jnp.ones((batch * width,), jnp.int32))
            logits = target.logits(weights, hidden).reshape(batch, width, -1)
        count = rules.num_candidates(target.eos_ids)
        best = beam_rules.continuations(logits, count, rules.logits, state.beams.rules)
        beams, parents, tokens = beam_rules.step(rules, target.eos_ids, state.beams, best)
        nan = jnp.where(state.beams.finished, 0, beam_rules.nan_of(best, state.beams))
        beams = dataclasses.replace(beams, finished=beams.finished | (nan > 0))
        cache = follow(target, cache, parents)
        return SearchState(beams, tokens, state.encoded, cache, jnp.maximum(state.nan, nan))

    def finished(self, state: SearchState) -> Bool[Array, " b"]:
        """Which rows have ended."""
        return state.beams.finished

    def all_finished(self, state: SearchState) -> SearchState:
        """The state with all rows ended."""
        return dataclasses.replace(state, beams=beam_rules.all_finished(state.beams))

    def needs(self, state: SearchState) -> Int[Array, " b"]:
        """The least output bucket for the tokens so far and the next call."""
        return beam_rules.needs(state.beams, 1)

    def result(self, params: tuple[BeamRules, Params], state: SearchState, size: int) -> BeamResult:
        """The n-best lists, with hypotheses of ``size`` tokens."""
        return result_of(params[0], state.beams, state.nan, size, self.target.pad_id)


def result_of(
    rules: BeamRules, beams: BeamState, nan: Int[Array, " b"], size: int, pad_id: int
) -> BeamResult:
    """The n-best lists of a search."""
    tokens, lengths, scores, log_probs, token_log_probs = beam_rules.best_hypotheses(rules, beams)
    inside = jnp.arange(size) < lengths[..., None]

    def of_size(values):
        values = values[:, :, :size]
        missing = size - values.shape[2]
        padding = [(0, missing) if axis == 2 else (0, 0) for axis in range(values.ndim)]
        return jnp.pad(values, padding)

    tokens = jnp.where(inside, of_size(tokens), pad_id)
    if token_log_probs is not None:
        token_log_probs = jnp.where(inside[..., None], of_size(token_log_probs), 0)
    return BeamResult(tokens, lengths, scores, log_probs, token_log_probs, beams.length, nan)


def hypotheses_of(
    result: BeamResult, index: int, eos_ids: Sequence[int],
    blocks: list[SearchedBlock] | None = None,
) -> list[Hypothesis]:  # fmt: skip
    """The hypotheses of a row, best first, fewer than W where fewer ended; arrays are NumPy's.

    Args:
      blocks: of the search, if they were traced.
    """
    found = []
    for beam in np.flatnonzero(result.num_tokens[index]):
        length, log_probs = result.num_tokens[index, beam], (None, None)
        if result.token_log_probs is not None:
            log_probs = np.asarray(result.token_log_probs)[index, beam, :length].T
        tokens = np.asarray(result.tokens)[index, beam, :length]
        score, log_prob = float(result.scores[index, beam]), float(result.log_probs[index, beam])
        end = "eos" if tokens[-1] in eos_ids else "limit"
        found.append(Hypothesis(tokens, end, None, score, log_prob, *log_probs, blocks=blocks))
    return found


@dataclasses.dataclass(frozen=True)
class BeamDecoder(LoopDecoder[BeamResult]):
    """Searches batches in one way.

    Raises:
      ValueError: more beams than there are tokens.
    """

    target: LoadedModel
    config: BeamConfig
    max_decode_len: int  # Tokens a hypothesis may have, EOS included.
    logit_rules: Rules = ()
    log_probs: bool = False  # Whether those of each token are kept.
    rules: tuple[Rule, ...] = ()  # The same, as they were given.

    def __post_init__(self):
        size = self.target.model.vocab_size
        if self.config.num_beams > size:
            raise ValueError(
                f"num_beams is {self.config.num_beams}, more than the vocabulary's {size} tokens."
            )

    @property
    def seed(self) -> int:
        """Seed 0: nothing is random."""
        return 0

    @property
    def loop(self) -> BeamLoop:
        return BeamLoop(self.target.model)

    @property
    def loop_params(self) -> tuple[BeamRules, Params]:
        rules = self.config.traced(self.output_bucket, self.logit_rules, self.log_probs)
        return rules, self.target.params

    def outputs(self, result: BeamResult, index: int) -> list[Hypothesis]:
        return hypotheses_of(result, index, self.target.model.eos_ids)

    def check_result(self, batch: Batch, result: BeamResult) -> None:
        refuse_nan(batch, result.nan, result.steps, self.target.source, self.rules)
        refuse_no_hypothesis(batch, result, self.rules)


def refuse_no_hypothesis(batch: Batch, result: BeamResult, rules: tuple[Rule, ...]) -> None:
    """Raises ValueError if rules left a row no hypothesis; it names the first such row."""
    none = (result.num_tokens[:, 0] == 0) & (batch.row_ids >= 0)
    if rules:
        refuse_stuck(batch, none, result.steps, rules)
