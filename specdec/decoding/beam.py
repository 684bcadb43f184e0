"""Beam search of a batch: one target call a token for all hypotheses of all rows.

The rules are in :mod:`specdec.decoding.beam_rules`; here are the calls. A hypothesis is a row of
the model's cache: row b * W + w is beam w of row b. What is encoded of the inputs is shared by the
W rows that follow each other, and never copied. The newest token of each hypothesis is not yet in
the cache: it opens the next call.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.compilation import decode_jit
from specdec.decoding import beam_rules
from specdec.decoding.batches import Batch, bucket, refuse_nan
from specdec.decoding.beam_rules import BeamConfig, BeamRules, BeamState
from specdec.models.base import LoadedModel, Model
from specdec.pytrees import pytree
from specdec.topology import CHAIN
from specdec.types import AnyArray, Cache, Encoded, Params, Prompt, Stats


@pytree
class BeamResult:
    """The n-best lists of a batch, best first.

    Attributes:
      tokens: [B, W, L] EOS included, ``pad_id`` after the end.
      num_tokens: [B, W]; 0 where fewer than W hypotheses ended.
      scores: [B, W] by the rule; -inf where there is no hypothesis.
      log_probs: [B, W] sums of log p, in float32.
      steps: [B] target calls until the row was done.
      nan: [B] whether logits were NaN before that.
    """

    tokens: Int[Array, "b w l"]
    num_tokens: Int[Array, "b w"]
    scores: Float[Array, "b w"]
    log_probs: Float[Array, "b w"]
    steps: Int[Array, " b"]
    nan: Bool[Array, " b"]

    def row(self, index: int, count: int) -> list[Hypothesis]:
        """The best ``count`` hypotheses of a row, fewer where fewer ended; arrays are NumPy's."""
        return [
            Hypothesis(tokens[:length], float(score), float(log_prob))
            for tokens, length, score, log_prob in zip(
                self.tokens[index, :count], self.num_tokens[index, :count],
                self.scores[index, :count], self.log_probs[index, :count], strict=True,
            )
            if length
        ]  # fmt: skip

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


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """An output of beam search.

    Attributes:
      tokens: EOS included, without padding.
      score: by the rule; what hypotheses are ordered by.
      log_prob: sum of log p.
      text: without what ends it; None without a vocabulary.
    """

    tokens: np.ndarray
    score: float
    log_prob: float
    text: str | None = None


@pytree
class _Loop:
    """What a target call needs."""

    beams: BeamState
    last_token: Int[Array, "b w"]  # Of each live hypothesis; not yet in the cache.
    cache: Cache
    nan: Bool[Array, " b"]


def follow(model: Model, cache: Cache, parents: Int[Array, "b w"]) -> Cache:
    """The cache of hypotheses whose parents are given; nothing is copied where none moved."""
    still = jnp.all(parents == jnp.arange(parents.shape[1]))
    return jax.lax.cond(still, lambda cache: cache, lambda c: model.select(c, parents), cache)


def _call(target: Model, rules: BeamRules, params: Params, encoded: Encoded, loop: _Loop) -> _Loop:
    """One target call, and one step of the rules."""
    batch, width = loop.last_token.shape
    with jax.named_scope("target"):
        hidden, cache = target.extend(
            params, encoded, loop.cache, loop.last_token.reshape(batch * width, 1)
        )
        cache = target.commit(cache, None, jnp.ones((batch * width,), jnp.int32))
        logits = target.logits(params, hidden).reshape(batch, width, -1)
    best = beam_rules.continuations(logits, rules.num_candidates(target.eos_ids))
    beams, parents, tokens = beam_rules.step(rules, target.eos_ids, loop.beams, best)
    nan = ~loop.beams.finished & jnp.any(jnp.isnan(best.log_probs), axis=(1, 2))
    beams = dataclasses.replace(beams, finished=beams.finished | nan)
    return _Loop(beams, tokens, follow(target, cache, parents), loop.nan | nan)


@decode_jit(static_argnames=("target", "output_bucket"))
def search(
    target: Model, rules: BeamRules, params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, *, output_bucket: int,
) -> BeamResult:  # fmt: skip
    """Searches a batch, the whole of it in one ``lax.while_loop``.

    Rows end apart; a row's hypotheses do not depend on its neighbours.

    Args:
      rules: :meth:`BeamConfig.traced` of the same ``output_bucket``.
      row_ids: [B]; a negative id marks a padding row, which is finished from the start.
      limit: tokens a hypothesis may have, EOS included, at most ``output_bucket``.
      output_bucket: L, size of the output buffers.
    """
    batch, width = len(row_ids), rules.num_beams
    start = target.start(params, prompt, output_bucket + 1)
    beams = beam_rules.initial_state(rules, batch, limit, output_bucket, target.pad_id)
    beams = dataclasses.replace(beams, finished=beams.finished | (row_ids < 0))
    loop = jax.lax.while_loop(
        lambda loop: ~jnp.all(loop.beams.finished),
        lambda loop: _call(target, rules, params, start.encoded, loop),
        _Loop(
            beams,
            jnp.broadcast_to(start.last_token[:, None], (batch, width)),
            target.select(start.cache, jnp.zeros((batch, width), jnp.int32)),
            jnp.zeros((batch,), bool),
        ),
    )
    tokens, lengths, scores, log_probs = beam_rules.best_hypotheses(rules, loop.beams)
    inside = jnp.arange(output_bucket) < lengths[..., None]
    tokens = jnp.where(inside, tokens, target.pad_id)
    return BeamResult(tokens, lengths, scores, log_probs, loop.beams.length, loop.nan)


@dataclasses.dataclass(frozen=True)
class BeamDecoder:
    """Searches batches in one way.

    Raises:
      ValueError: more beams than there are tokens.
    """

    target: LoadedModel
    config: BeamConfig
    max_decode_len: int  # Tokens a hypothesis may have, EOS included.

    def __post_init__(self):
        size = self.target.model.vocab_size
        if self.config.num_beams > size:
            raise ValueError(
                f"num_beams is {self.config.num_beams}, more than the vocabulary's {size} tokens."
            )

    @property
    def output_bucket(self) -> int:
        """Size of the output buffers."""
        return bucket(self.max_decode_len)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The program of :meth:`search` for such a batch, to be compiled in any thread."""
        return search.lower(
            *self._arguments(batch), self.max_decode_len, output_bucket=self.output_bucket
        )

    def _arguments(self, batch: Batch) -> tuple[Model, BeamRules, Params, Prompt, AnyArray]:
        prompt, row_ids = self.target.place_rows((batch.prompt, batch.row_ids))
        rules = self.config.traced(self.output_bucket)
        return self.target.model, rules, self.target.params, prompt, row_ids

    def search(self, batch: Batch, *, limit: int | None = None) -> BeamResult:
        """Searches a batch and brings the result to the host as NumPy arrays.

        Args:
          limit: tokens a hypothesis of this batch may have, at most ``max_decode_len``, the
            default.

        Raises:
          ValueError: the mesh cannot cut the batch into equal parts; logits are NaN (it names the
            row).
        """
        result = search(
            *self._arguments(batch), self.max_decode_len if limit is None else limit,
            output_bucket=self.output_bucket,
        )  # fmt: skip
        result = jax.tree.map(np.asarray, result)
        refuse_nan(batch, result.nan, result.steps, self.target.source)
        return result
