"""A task's rows as a pair of models takes them, streamed: a window is held, never the task.

A window is 64 batches' worth of rows, sorted by length and cut into batches. So the order of work
depends on the task and the batch size alone. A run's only state is the file of decoded rows, which
is always the beginning of what an uninterrupted run writes. To continue is to append to it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import numpy as np

from specdec.api import Pair
from specdec.data.tasks import Example, Task, evenly, model_inputs
from specdec.data.text import BadRow
from specdec.decoding.batches import Batch, input_bucket, make_batches

WINDOW = 64  # Batches' worth of rows that are sorted by length together.
_SHOWN = 10

BadRows = Literal["fail", "skip"]


@dataclasses.dataclass(frozen=True)
class Item:
    """A row that can be decoded: its index in the task, itself, and [S] int32 with EOS."""

    id: int
    example: Example
    tokens: np.ndarray


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A row that cannot, as in ``skipped.jsonl``: its index in the task, and its ``BadRow``."""

    id: int
    origin: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Survey:
    """Findings of a first pass over all rows.

    Attributes:
      num_rows, num_shapes: rows that can be decoded, and their input buckets.
      checksum: of their tokens and references.
      num_skipped, first_skipped: rows that cannot, and a few of them.
    """

    num_rows: int
    num_shapes: int
    checksum: int
    num_skipped: int
    first_skipped: tuple[Skipped, ...]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The first rows of a task, in its order; each iteration reads them again.

    Attributes:
      num_examples: how many rows, bad ones counted; None for all.
      prefix: token ids that each output is made to begin with.
      bad_rows: "skip" yields them as :class:`Skipped`; with "fail" reading raises ValueError at a
        row that is bad or longer than ``max_input_len`` tokens; it also does as ``model_inputs``.
    """

    task: Task
    pair: Pair
    max_input_len: int
    num_examples: int | None
    bad_rows: BadRows
    max_decode_len: int = 0  # Tokens for which positions must be left behind each row.
    prefix: Sequence[int] = ()
    truncate: bool = False  # Whether rows that are longer are cut.

    def __iter__(self) -> Iterator[Item | Skipped]:
        for index, row in enumerate(islice(self.task.read(), self.num_examples)):
            found = self._tokenized(index, row) if isinstance(row, Example) else row
            if isinstance(found, BadRow):
                if self.bad_rows == "fail":
                    raise ValueError(found.reason)
                found = Skipped(index, found.origin, found.reason)
            yield found

    def _tokenized(self, index: int, row: Example) -> Item | BadRow:
        given, limit = model_inputs([row], self.pair.vocabulary), self.max_input_len
        try:
            (tokens,) = self.pair.token_ids(
                given, max_input_len=limit, names=[row.origin],
                max_decode_len=self.max_decode_len, truncate=self.truncate,
            )  # fmt: skip
        except ValueError as error:
            return BadRow(row.origin, str(error))
        return Item(index, row, tokens)

    def items(self) -> Iterator[Item]:
        """The rows that can be decoded."""
        return (row for row in self if isinstance(row, Item))

    def survey(self) -> Survey:
        """Reads every row once; raises ValueError as reading, or if there is nothing to decode."""
        num_rows, num_skipped, checksum, buckets, first = 0, 0, 0, set(), []
        for row in self:
            if isinstance(row, Item):
                num_rows += 1
                content = f"{row.id} {row.tokens.tolist()} {row.example.reference}"
                checksum = zlib.crc32(content.encode(), checksum)
                buckets.add(input_bucket(len(row.tokens)))
            else:
                num_skipped += 1
                first = [*first, row][:_SHOWN]
        if not num_rows:
            why = f": {first[0].reason}" if first else "."
            raise ValueError(f"{self.task.name} has no row that can be decoded{why}")
        return Survey(num_rows, len(buckets), checksum, num_skipped, tuple(first))

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, list[Item]]]:
        """Batches with their rows, which come first in the batch.

        A window of rows is sorted by length and cut into batches, then comes the next window: rows
        of a batch end at about the same time, and what follows what depends on the task alone.
        """
        items = self.items()
        while window := list(islice(items, WINDOW * batch_size)):
            window.sort(key=lambda item: len(item.tokens))
            for batch in self.batches_of([item.tokens for item in window], batch_size):
                members = [window[index] for index in batch.row_ids if index >= 0]
                row_ids = np.full(batch_size, -1, np.int32)
                row_ids[: len(members)] = [item.id for item in members]
                yield dataclasses.replace(batch, row_ids=row_ids), members
            window.clear()  # Before the next one is read.

    def batches_of(self, ids: Sequence[np.ndarray], batch_size: int) -> Iterator[Batch]:
        """Batches of these tokens, with the prefix that all outputs begin with."""
        return make_batches(ids, batch_size, self.pair.target.model, self.prefixes(len(ids)))

    def prefixes(self, count: int) -> list[np.ndarray]:
        """The prefix, for each of ``count`` rows."""
        return [np.asarray(self.prefix, np.int32)] * count

    def sample(self, count: int, num_rows: int) -> list[np.ndarray]:
        """Tokens of ``count`` of the ``num_rows`` rows, evenly spread."""
        indices = set(evenly(range(num_rows), count))
        return [item.tokens for index, item in enumerate(self.items()) if index in indices]
