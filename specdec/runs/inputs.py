"""A task's rows as a pair of models takes them: read once, kept in files, held a window at a time.

A window is 64 batches' worth of rows, sorted by length and cut into batches. So the order of work
depends on the task and the batch size alone. A run's only state is the file of decoded rows, which
is always the beginning of what an uninterrupted run writes. To continue is to append to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np

from specdec.api import Pair
from specdec.core.files import Kept
from specdec.data.tasks import Example, Task, evenly, good, model_inputs
from specdec.data.text import BadRow
from specdec.decoding.batches import Batch, input_bucket, make_batches

WINDOW = 64  # Batches' worth of rows that are sorted by length together.

BadRows = Literal["fail", "skip"]


@dataclasses.dataclass(frozen=True)
class Item:
    """A row that can be decoded: its index in the task, itself, and [S] int32 with EOS.

    ``given`` are the texts that the draft follows, as in ``Prompt.given``; None if it follows none.
    """

    id: int
    example: Example
    tokens: np.ndarray
    given: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A row that cannot, as in ``skipped.jsonl``: its index in the task, and its ``BadRow``."""

    id: int
    origin: str
    reason: str


def read(task: Task, num_examples: int | None, bad_rows: BadRows) -> Kept[Example | BadRow]:
    """The first rows of a task, kept in its order.

    Args:
      num_examples: how many, bad ones counted; None for all.

    Raises:
      ValueError: ``bad_rows`` is "fail", and one is bad.
    """
    rows = islice(task.read(), num_examples)
    return Kept(map(good, rows) if bad_rows == "fail" else rows)


class Inputs:
    """Rows as a pair takes them, tokenized once and kept, in their order.

    Args:
      rows: of :func:`read`.
      name: of their task, in messages.
      max_decode_len: tokens for which positions must be left behind each row.
      prefix: token ids that each output is made to begin with.
      truncate: whether rows that are longer than ``max_input_len`` tokens are cut.
      follows: whether the draft follows the rows' texts.

    Attributes:
      num_rows, num_shapes: rows that can be decoded, and their input buckets.
      checksum: of their tokens and references, and of the texts that the draft follows.
      num_skipped: rows that cannot.

    Raises:
      ValueError: nothing is left to decode; the draft follows texts, and no row has one; as
        ``model_inputs``; or with ``bad_rows`` "fail" at a row that is bad or longer than
        ``max_input_len`` tokens.
    """

    def __init__(
        self, rows: Iterable[Example | BadRow], name: str, pair: Pair, *, max_input_len: int,
        bad_rows: BadRows, max_decode_len: int = 0, prefix: Sequence[int] = (),
        truncate: bool = False, follows: bool = False,
    ):  # fmt: skip
        self._pair, self._bad_rows, self._prefix = pair, bad_rows, prefix
        self._follows = follows
        self._options: dict[str, Any] = dict(
            max_input_len=max_input_len, max_decode_len=max_decode_len, truncate=truncate
        )
        self._rows = Kept(itertools.starmap(self._tokenized, enumerate(rows)))
        self.num_rows = self.checksum = self._given_size = 0
        buckets = set()
        for item in self.items():
            self.num_rows += 1
            content = f"{item.id} {item.tokens.tolist()} {item.example.reference}"
            if item.given is not None:
                content += f" {item.given.tolist()}"
                self._given_size = max(self._given_size, len(item.given))
            self.checksum = zlib.crc32(content.encode(), self.checksum)
            buckets.add(input_bucket(len(item.tokens)))
        self.num_shapes = len(buckets)
        self.num_skipped = sum(1 for _ in self.skipped())
        if not self.num_rows:
            first = next(self.skipped(), None)
            why = f": {first.reason}" if first else "."
            raise ValueError(f"{name} has no row that can be decoded{why}")
        if follows and self._given_size == 1:
            raise ValueError(
                f"The draft follows given texts, and no row of {name} has one: give a task with a "
                "column of them, such as pairs_file.given = True, or another draft."
            )

    def _tokenized(self, index: int, row: Example | BadRow) -> Item | Skipped:
        if isinstance(row, Example):
            texts, names, given = model_inputs([row], self._pair.vocabulary), [row.origin], None
            try:
                (tokens,) = self._pair.token_ids(texts, names=names, **self._options)
                if self._follows:
                    (given,) = self._pair.given_ids([row.given], 1, names)
                return Item(index, row, tokens, given)
            except ValueError as error:
                row = BadRow(row.origin, str(error))
        if self._bad_rows == "fail":
            raise ValueError(row.reason)
        return Skipped(index, row.origin, row.reason)

    def items(self) -> Iterator[Item]:
        """The rows that can be decoded."""
        return (row for row in self._rows if isinstance(row, Item))

    def skipped(self) -> Iterator[Skipped]:
        """The rows that cannot."""
        return (row for row in self._rows if isinstance(row, Skipped))

    def batches(self, batch_size: int) -> Iterator[tuple[Batch, list[Item]]]:
        """Batches with their rows, which come first in the batch.

        A window of rows is sorted by length and cut into batches, then comes the next window: rows
        of a batch end at about the same time, and what follows what depends on the task alone.
        """
        items = self.items()
        while window := list(islice(items, WINDOW * batch_size)):
            window.sort(key=lambda item: len(item.tokens))
            for batch in self.batches_of(window, batch_size):
                members = [window[index] for index in batch.row_ids if index >= 0]
                row_ids = np.full(batch_size, -1, np.int32)
                row_ids[: len(members)] = [item.id for item in members]
                yield dataclasses.replace(batch, row_ids=row_ids), members
            window.clear()  # Before the next one is read.

    def batches_of(self, items: Sequence[Item], batch_size: int) -> Iterator[Batch]:
        """Batches of these rows, with the prefix that all outputs begin with."""
        ids, prefixes = [item.tokens for item in items], self.prefixes(len(items))
        model, given = self._pair.target.model, self.given(items)
        return make_batches(ids, batch_size, model, prefixes, given=given)

    def given(self, items: Sequence[Item]) -> list[np.ndarray] | None:
        """The texts that the draft follows, of one size in all rows of the task."""
        size = self._given_size
        found = [np.pad(i.given, (0, size - len(i.given))) for i in items if i.given is not None]
        return found or None

    def prefixes(self, count: int) -> list[np.ndarray]:
        """The prefix, for each of ``count`` rows."""
        return [np.asarray(self._prefix, np.int32)] * count

    def sample(self, count: int) -> list[Item]:
        """``count`` of the rows that can be decoded (or all, if they are fewer), evenly spread."""
        indices = set(evenly(range(self.num_rows), count))
        return [item for index, item in enumerate(self.items()) if index in indices]
