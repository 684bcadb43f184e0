"""Results of :meth:`specdec.api.Pair.generate`: a loop's results, as rows with texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import Pause
from specdec.decoding.batches import Batch, Block, blocks_of
from specdec.decoding.beam import BeamResult, Hypothesis
from specdec.decoding.options import Decoding
from specdec.decoding.samples import rows_of, samples_of
from specdec.decoding.speculative_beam import (
    BeamCounts,
    SearchedBlock,
    SpeculativeBeamResult,
    searched_blocks,
)
from specdec.measure.choice import Choice
from specdec.models.base import LoadableModel
from specdec.rules.stops import cut_before
from specdec.text.base import Tokenizer, added_text
from specdec.text.streaming import End, Piece, pieces, sure
from specdec.types import DecodeResult


@dataclasses.dataclass(frozen=True)
class Texts:
    """Makes the texts of outputs.

    Attributes:
      model: whose outputs they are.
      vocabulary: None where there is none, and then no texts.
    """

    model: LoadableModel
    vocabulary: Tokenizer | None

    def of(
        self, tokens: np.ndarray, batch: Batch, index: int, stop: Sequence[str | int] = ()
    ) -> str | None:
        """Text that an output adds to the one that a batch's row begins with.

        The EOS that ends it has no text.

        Args:
          stop: the text ends before the first of these strings.
        """
        if self.vocabulary is None:
            return None
        prompt = batch.prompt
        start = 0 if self.model.reads_prefix else 1  # The start token is no text.
        before = prompt.prefix[index, start : prompt.prefix_lengths[index]].tolist()
        is_ended = len(tokens) and tokens[-1] in self.model.eos_ids
        text = added_text(self.vocabulary, before, tokens[: -1 if is_ended else None].tolist())
        return cut_before(text, stop)


@dataclasses.dataclass(frozen=True)
class Sample:
    """An output of a text.

    Attributes:
      text: the output's addition to the text of a decoder-only model, or to ``prefix``. None if the
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
        """A sample without its text.

        Args:
          row: a result's, without the axis of rows.
          limit: tokens that it may have.
        """
        count, asked_for = int(row.num_tokens), {}
        if row.log_probs is not None:
            plain, adjusted, top_tokens, top = (
                leaf[:count] for leaf in vars(row.log_probs).values()
            )
            asked_for = {"log_probs": plain, "adjusted_log_probs": adjusted}
            asked_for["alternatives"] = (top_tokens, top) if top.shape[-1] else None
        return cls(
            None, np.asarray(row.tokens[:count]), ended(row, eos_ids, limit), **asked_for,
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
    """Result of :meth:`specdec.api.Pair.generate`; with ``num_samples``, of first samples.

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
    def of_results(
        cls, texts: Texts, decoding: Decoding, num_rows: int,
        results: Iterable[tuple[Batch, DecodeResult]],
    ) -> GenerateOutput:  # fmt: skip
        """The output of batches that a draft or plain decoding has decoded.

        Args:
          num_rows: of all batches, of which the last ones may be missing: there was no time.
        """
        samples: list[list[Sample]] = [[] for _ in range(num_rows)]
        count, stats, nothing = decoding.num_samples, [], None
        for batch, result in results:
            stats.append(rows_of(result.stats))
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    rows = samples_of(result, index, count)
                    samples[row] = [sample_of(texts, decoding, r, batch, index) for r in rows]
                    nothing = nothing or (jax.tree.map(np.zeros_like, rows[0]), batch, index)
        for row, found in enumerate(samples):
            if not found:
                assert nothing is not None
                samples[row] = [sample_of(texts, decoding, *nothing)] * count
        total = RunStats.total(stats, num_rows * count, decoding.depth)
        return cls.of_samples(samples, total)

    @classmethod
    def of_beams(
        cls, texts: Texts, decoding: Decoding, num_rows: int,
        results: Iterable[tuple[Batch, BeamResult | SpeculativeBeamResult]],
    ) -> GenerateOutput:  # fmt: skip
        """The output of batches that were searched; see :meth:`of_results`."""
        beam, num_return = decoding.beam, decoding.num_return
        assert beam is not None
        assert num_return is not None
        beams: list[list[Hypothesis]] = [[] for _ in range(num_rows)]
        traces: list[list[SearchedBlock]] = [[] for _ in range(num_rows)]
        stats, counts, traced = [], [], False
        for batch, result in results:
            stats.append(result.stats)
            trace = None
            if isinstance(result, SpeculativeBeamResult):
                counts.append(result.counts)
                trace = result.trace
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    beams[row] = with_texts(texts, result.row(index, num_return), batch, index)
                    if trace is not None:
                        traced = True
                        traces[row] = searched_blocks(trace, index, beam.num_beams)
        given: dict[str, Any] = {}
        if decoding.log_probs:
            names = ("log_probs", "adjusted_log_probs")
            given = {name: [getattr(row[0], name) for row in beams] for name in names}
        return cls(
            None if texts.vocabulary is None else [row[0].text or "" for row in beams],
            [row[0].tokens for row in beams],
            RunStats.total(stats, num_rows, decoding.depth),
            traces if traced else None,
            beams=beams,
            searched=BeamCounts.total(counts) if counts else None,
            **given,
        )

    @classmethod
    def of_samples(cls, samples: list[list[Sample]], stats: RunStats) -> GenerateOutput:
        """The output with these samples of each row."""

        def first(name: str) -> Any:
            """Values of each row; None where they were not asked for."""
            values = [getattr(row[0], name) for row in samples]
            return None if any(value is None for value in values) else values

        names = ("tokens", "ended", "log_probs", "adjusted_log_probs", "alternatives")
        return cls(
            first("text"), stats=stats, traces=first("blocks"), samples=samples,
            **{name: first(name) for name in names},
        )  # fmt: skip


def sample_of(
    texts: Texts, decoding: Decoding, row: DecodeResult, batch: Batch, index: int
) -> Sample:
    """A row of a result, an output of a batch's row, with its text."""
    sample = Sample.of(row, texts.model.eos_ids, decoding.max_decode_len)
    text = texts.of(sample.tokens, batch, index, decoding.stop)
    return dataclasses.replace(sample, text=text)


def with_texts(
    texts: Texts, beams: Sequence[Hypothesis], batch: Batch, index: int
) -> list[Hypothesis]:
    """The hypotheses of a batch's row with their texts, where there is a vocabulary."""
    return [dataclasses.replace(each, text=texts.of(each.tokens, batch, index)) for each in beams]


def pieces_of(
    texts: Texts, decoding: Decoding, batch: Batch, pauses: Iterable[Pause[DecodeResult]]
) -> Iterator[Piece]:
    """Pieces that each block adds to the output of a batch of one row, whose blocks are traced."""
    vocabulary = texts.vocabulary

    def shown_of(tokens: Sequence[int] | np.ndarray) -> str:
        return texts.of(np.asarray(tokens), batch, 0, decoding.stop) or ""

    def parts() -> Iterator[tuple[np.ndarray, int, str, End | None]]:
        seen = count = accepted = 0
        for pause in pauses:
            (row,) = samples_of(pause.result, 0, 1)
            sample = Sample.of(row, texts.model.eos_ids, decoding.max_decode_len)
            assert sample.blocks is not None
            for number, block in enumerate(sample.blocks[seen:], start=seen + 1):
                accepted += len(block.accepted)
                count += len(block.accepted) + (block.correction is not None)
                tokens = sample.tokens[:count]
                last = number == len(sample.blocks) and (pause.finished[0] or pause.over)
                if last or vocabulary is None:
                    shown = shown_of(tokens)
                else:
                    shown = sure(shown_of, tokens.tolist(), vocabulary)
                yield tokens, accepted, shown, sample.ended if last else None
            seen = len(sample.blocks)

    return pieces(parts(), vocabulary, decoding.stop)
