"""What :meth:`specdec.api.Pair.generate` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specdec.core.stats import RunStats
from specdec.decoding.batches import Block, blocks_of
from specdec.decoding.beam import Hypothesis
from specdec.decoding.speculative_beam import BeamCounts, SearchedBlock
from specdec.measure.choice import Choice
from specdec.text.streaming import End
from specdec.types import DecodeResult


@dataclasses.dataclass(frozen=True)
class Sample:
    """An output of a text.

    Attributes:
      text: what the output adds to the text of a decoder-only model, or to ``prefix``. None if the
        pair has no vocabulary.
      tokens: [T] int32, EOS included.
      ended: why: "eos", "limit" (``max_decode_len``), "stop" (a stop string or stop token) or
        "time" (``time_limit``).
      log_probs: with ``log_probs=True``, [T] float32: log p of each token by the target's own
        distribution, softmax(logits).
      adjusted_log_probs: the same by the distribution that outputs follow: with rules, and above
        temperature 0 with temperature, top-k and so on.
      alternatives: with ``top_log_probs=n``, the likeliest tokens [T, n] in place of each token,
        best first, and their log p [T, n].
      blocks: with ``trace=True``, what each block accepted, rejected and added.
    """

    text: str | None
    tokens: np.ndarray
    ended: End
    log_probs: np.ndarray | None = None
    adjusted_log_probs: np.ndarray | None = None
    alternatives: tuple[np.ndarray, np.ndarray] | None = None
    blocks: list[Block] | None = None

    @classmethod
    def of(cls, row: DecodeResult, eos_ids: Sequence[int], limit: int) -> Sample:
        """Without its text.

        Args:
          row: a result's, without the axis of rows.
          limit: tokens that it may have.
        """
        count, told = int(row.num_tokens), {}
        if row.log_probs is not None:
            plain, adjusted, top_tokens, top = (
                leaf[:count] for leaf in vars(row.log_probs).values()
            )
            told = {"log_probs": plain, "adjusted_log_probs": adjusted}
            told["alternatives"] = (top_tokens, top) if top.shape[-1] else None
        return cls(
            None, np.asarray(row.tokens[:count]), ended(row, eos_ids, limit), **told,
            blocks=None if row.trace is None 
            else blocks_of(jax.tree.map(lambda leaf: leaf[None], row.trace), 0),
        )  # fmt: skip


def ended(row: DecodeResult, eos_ids: Sequence[int], limit: int) -> End:
    """Why a row has ended; "time" if it did not end by itself."""
    count = int(row.num_tokens)
    if row.stopped is not None and row.stopped:
        return "stop"
    if count and row.tokens[count - 1] in eos_ids:
        return "eos"
    return "limit" if count >= limit else "time"


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """What :meth:`specdec.api.Pair.generate` returns; with ``num_samples``, of first samples.

    Attributes:
      texts: one string a row: what its output adds to the text of a decoder-only model, or to
        ``prefix``. So a piece that continues a word has no space in front. None if the pair has no
        vocabulary.
      tokens: one int32 array a row, EOS included, without padding.
      stats: totals over all rows and samples.
      traces: the blocks of each row; None without ``trace=True``.
      samples: of each row all ``num_samples`` outputs; None for beams.
      ended, log_probs, adjusted_log_probs, alternatives: of each row; see :class:`Sample`. None for
        beams but for ``log_probs`` and ``adjusted_log_probs``, and unless they were asked for.
      choice: of "auto", what was chosen and why.
      beams: of beam search, the ``num_return`` best hypotheses of each row, best first (fewer if
        fewer ended); ``texts`` and ``tokens`` are the best ones. None for other methods.
      searched: of speculative beams, how many levels calls advanced and why blocks ended.
    """

    texts: list[str] | None
    tokens: list[np.ndarray]
    stats: RunStats
    traces: list[list[Block]] | list[list[SearchedBlock]] | None
    samples: list[list[Sample]] | None = None
    ended: list[End] | None = None
    log_probs: list[np.ndarray] | None = None
    adjusted_log_probs: list[np.ndarray] | None = None
    alternatives: list[tuple[np.ndarray, np.ndarray]] | None = None
    choice: Choice | None = None
    beams: list[list[Hypothesis]] | None = None
    searched: BeamCounts | None = None

    @classmethod
    def of_samples(cls, samples: list[list[Sample]], stats: RunStats) -> GenerateOutput:
        """The output with these samples of each row."""

        def first(name: str) -> Any:
            """Of each row; None where that was not asked for."""
            values = [getattr(row[0], name) for row in samples]
            return None if any(value is None for value in values) else values

        names = ("tokens", "ended", "log_probs", "adjusted_log_probs", "alternatives")
        return cls(
            first("text"), stats=stats, traces=first("blocks"), samples=samples,
            **{name: first(name) for name in names},
        )  # fmt: skip
