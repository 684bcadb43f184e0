"""Results of :meth:`specdec.api.Pair.generate`: a loop's results, as rows with texts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import BatchDecoder, LoopDecoder, Pause
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamCounts
from specdec.decoding.blocks import Block, SearchedBlock
from specdec.decoding.hypotheses import End, Hypothesis
from specdec.decoding.options import Decoding
from specdec.decoding.samples import rows_of
from specdec.measure.choice import Choice
from specdec.measure.lossless import Audit
from specdec.models.base import LoadableModel
from specdec.rules.stops import cut_before
from specdec.text.base import Tokenizer, added_text
from specdec.text.streaming import Piece, settled, sure
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

    def added(
        self, outputs: Sequence[Hypothesis], batch: Batch, index: int,
        stop: Sequence[str | int] = (),
    ) -> list[Hypothesis]:  # fmt: skip
        """Outputs of a batch's row with their texts; see :meth:`of`."""
        return [
            dataclasses.replace(each, text=self.of(each.tokens, batch, index, stop))
            for each in outputs
        ]


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """Result of :meth:`specdec.api.Pair.generate`.

    Attributes:
      hypotheses: of each row its outputs: all ``num_samples``, or of beam search the ``num_return``
        best, best first (fewer if fewer ended).
      stats: totals over all rows and samples.
      is_searched: whether they are of beam search.
      choice: of "auto", what was chosen and why.
      audit: with ``audit=True``, how many tokens rounding could change.
      searched: of speculative beams, how many levels calls advanced and why blocks ended.
    """

    hypotheses: list[list[Hypothesis]]
    stats: RunStats
    is_searched: bool = False
    choice: Choice | None = None
    audit: Audit | None = None
    searched: BeamCounts | None = None

    @classmethod
    def of(
        cls, texts: Texts, decoding: Decoding, decoder: LoopDecoder[Any], num_rows: int,
        results: Iterable[tuple[Batch, Any]],
    ) -> GenerateOutput:  # fmt: skip
        """The output of batches.

        Args:
          decoder: what decoded them.
          num_rows: of all batches, of which the last ones may be missing: there was no time.
        """
        found: list[list[Hypothesis]] = [[] for _ in range(num_rows)]
        is_fast = decoding.method == "speculative_beam"
        stats, levels, ends = [], [], []
        for batch, result in results:
            stats.append(rows_of(result.stats))
            if is_fast:
                levels.append(result.levels)
                ends.append(result.ends)
            for index, row in enumerate(batch.row_ids):
                if row >= 0:
                    outputs = decoder.outputs(result, index)[: decoding.num_outputs]
                    found[row] = texts.added(outputs, batch, index, decoding.stop)
        some = next(filter(None, found), [])
        without = [each.without_time() for each in some]
        return cls(
            [row or without for row in found],
            RunStats.total(stats, num_rows * decoding.num_samples, decoding.depth),
            decoding.searches,
            searched=BeamCounts.total(levels, ends) if levels else None,
        )

    def _first(self, name: str) -> Any:
        """Values of each row's first output; None where they were not asked for."""
        values = [getattr(row[0], name) for row in self.hypotheses]
        return None if any(value is None for value in values) else values

    @functools.cached_property
    def texts(self) -> list[str] | None:
        """One string a row: what its output adds to the text of a decoder-only model or ``prefix``.

        So a piece that continues a word has no space in front. None without a vocabulary.
        """
        return self._first("text")

    @functools.cached_property
    def tokens(self) -> list[np.ndarray]:
        """One int32 array a row, EOS included, without padding."""
        return self._first("tokens")

    @functools.cached_property
    def ended(self) -> list[End]:
        """Why each row's output ended; see :class:`specdec.decoding.hypotheses.Hypothesis`."""
        return self._first("ended")

    @functools.cached_property
    def log_probs(self) -> list[np.ndarray] | None:
        """log p of each row's tokens; None unless asked for."""
        return self._first("log_probs")

    @functools.cached_property
    def adjusted_log_probs(self) -> list[np.ndarray] | None:
        """log p of each row's tokens by the distribution that outputs follow; see ``log_probs``."""
        return self._first("adjusted_log_probs")

    @functools.cached_property
    def alternatives(self) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """The likeliest tokens in place of each row's; None without ``top_log_probs``."""
        return self._first("alternatives")

    @functools.cached_property
    def margins(self) -> list[np.ndarray] | None:
        """Each token's logit minus the second largest, [T] a row; None without ``audit``."""
        return self._first("margins")

    @functools.cached_property
    def traces(self) -> list[list[Block]] | list[list[SearchedBlock]] | None:
        """The blocks of each row; None without ``trace=True``."""
        return self._first("blocks")

    @property
    def samples(self) -> list[list[Hypothesis]] | None:
        """All outputs of each row; None for beams."""
        return None if self.is_searched else self.hypotheses

    @property
    def beams(self) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each row; None for other methods than beam search."""
        return self.hypotheses if self.is_searched else None


def pieces_of(
    texts: Texts, decoding: Decoding, decoder: BatchDecoder, batch: Batch,
    pauses: Iterable[Pause[DecodeResult]],
) -> Iterator[Piece]:  # fmt: skip
    """Pieces that each block adds to the output of a batch of one row, whose blocks are traced."""
    vocabulary, text = texts.vocabulary, ""

    def text_of(tokens: Sequence[int] | np.ndarray) -> str:
        return texts.of(np.asarray(tokens), batch, 0, decoding.stop) or ""

    seen = count = 0
    for pause in pauses:
        (output,) = decoder.outputs(pause.result, 0)
        blocks = cast(list[Block], output.blocks)
        for number, block in enumerate(blocks[seen:], start=seen + 1):
            begin, accepted = count, len(block.accepted)
            count += accepted + (block.correction is not None)
            tokens = output.tokens[:count]
            last = number == len(blocks) and (pause.finished[0] or pause.over)
            if last or vocabulary is None:
                whole = text_of(tokens)
            else:
                whole = settled(
                    sure(text_of, tokens.tolist(), vocabulary), vocabulary, decoding.stop
                )
            yield Piece(
                whole[len(text) :], tokens[begin:], accepted, output.ended if last else None
            )
            text = whole if len(whole) > len(text) else text
        seen = len(blocks)
