"""Batches decoded one into the other: rows that have ended make place for the next ones.

A batch alone waits for its slowest row. Here the next batch is started while the first is under
way, and inside the loop the place of each row that has ended is given to a row that waits. When
nobody waits any more the loop pauses, and the batch after is started. So encoders see whole
batches, no place is empty while a row waits, and the host is asked once a batch. Shapes are static
all the same.

A row's tokens do not depend on any of this, for its random numbers follow from its own id and its
own blocks. Results come in the order of the batches, when all rows of the first one have ended.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import numpy as np

from specdec.decoding import loop as loops
from specdec.decoding.batches import Batch
from specdec.models.partitioning import ways
from specdec.models.placing import to_host
from specdec.types import Prompt

if TYPE_CHECKING:
    from specdec.decoding.batch_decoder import LoopDecoder

R = TypeVar("R")
Sizes = tuple[int, int]  # Of a batch's inputs and prefixes.


@dataclasses.dataclass
class _Open:
    """A batch under way."""

    batch: Batch
    results: list[Any]  # Of each row, what it came to; None before, and for rows that fill up.
    missing: int


_Row = tuple[_Open, int]  # A row of a batch.


class _Queue:
    """Rows that are still to start, of the batches in their order."""

    def __init__(self, batches: Iterable[Batch]):
        self._batches = iter(batches)
        self._rows: collections.deque[_Row] = collections.deque()
        self._open: collections.deque[_Open] = collections.deque()

    def sizes(self) -> Sizes | None:
        """Padded sizes of the next row's inputs and prefix; None where there is no row."""
        while not self._rows:
            batch = next(self._batches, None)
            if batch is None:
                return None
            rows = np.flatnonzero(batch.row_ids >= 0)
            opened = _Open(batch, [None] * len(batch.row_ids), len(rows))
            self._open.append(opened)
            self._rows.extend((opened, int(row)) for row in rows)
        prompt = self._rows[0][0].batch.prompt
        return prompt.inputs.shape[1], prompt.prefix.shape[1]

    def take(self, most: int) -> list[_Row]:
        """The next rows of the same sizes."""
        taken, sizes = [], self.sizes()
        while len(taken) < most and self.sizes() == sizes:
            taken.append(self._rows.popleft())
        return taken

    def done(self) -> Iterator[tuple[Batch, Any]]:
        """The first batches all of whose rows have ended."""
        while self._open and not self._open[0].missing:
            opened = self._open.popleft()
            yield opened.batch, _stacked(opened.results)


class Refilled(Generic[R]):
    """Decodes batches of as many rows each.

    Attributes:
      blocks: number that its loops have run so far.
    """

    def __init__(self, decoder: LoopDecoder[R], batch_size: int, trace: bool):
        self.blocks = 0
        self._decoder, self._trace = decoder, trace
        self._loop, self._batch_size = decoder.loop, batch_size
        self._groups = ways(decoder.target.partitioning, "batch")
        self._tag = 0  # Of the next row.
        self._going: dict[int, _Row] = {}  # Rows that were started and have not ended, by tag.

    def decode(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, R]]:
        """Yields each batch with its result."""
        queue = _Queue(batches)
        while queue.sizes() is not None:
            yield from self._until_smaller(queue)

    def _until_smaller(self, queue: _Queue) -> Iterator[tuple[Batch, R]]:
        """Decodes for as long as rows follow whose inputs and prefixes are of no smaller size."""
        size, capacity = self._batch_size, self._decoder.first_bucket
        waiting, sizes = self._next(queue)
        state = loops.emptied(self._loop, waiting.state)
        tags = np.full(size, -1, np.int32)
        while True:
            following = queue.sizes()
            joins = following and all(a >= b for a, b in zip(following, sizes, strict=True))
            found = loops.refill(
                self._loop, self._decoder.loop_params, state, tags, waiting, 1 if joins else size,
                output_bucket=capacity, size=self._decoder.output_bucket,
            )  # fmt: skip
            state, found = found.state, to_host(dataclasses.replace(found, state=None))
            tags, finished = np.array(found.tags), found.status.finished
            self.blocks += int(found.blocks)
            self._keep(found.left, np.asarray(found.replaced))
            self._keep(found.result, np.where(finished, tags, -1))
            tags[finished] = -1
            yield from queue.done()
            waiting = dataclasses.replace(waiting, taken=found.taken)
            nobody = np.array_equal(waiting.taken, waiting.count)
            if nobody and not joins and np.all(finished):
                return
            before = capacity, sizes
            capacity = max(self._decoder.first_bucket, loops.capacity(found.status, tags >= 0))
            if nobody and joins:
                waiting, sizes = self._next(queue)
            if (capacity, sizes) != before:
                params, *given = self._arguments([], sizes)
                state = loops.resized(
                    self._loop, params, state, *given, output_bucket=capacity, trace=self._trace
                )

    def _next(self, queue: _Queue) -> tuple[loops.RefillQueue[Any], Sizes]:
        """The next rows, started."""
        sizes = queue.sizes()
        assert sizes
        rows = queue.take(self._batch_size)
        each = self._batch_size // self._groups
        # As many in each group, but for the last ones.
        indices = np.arange(self._batch_size).reshape(each, self._groups).T.reshape(-1)
        tags = np.where(indices < len(rows), self._tag + indices, -1).astype(np.int32)
        count = np.sum(tags.reshape(self._groups, each) >= 0, axis=1, dtype=np.int32)
        places = [rows[index] if index < len(rows) else None for index in indices]
        self._going.update(enumerate(rows, self._tag))
        self._tag += len(rows)
        state = loops.start(
            self._loop, *self._arguments(places, sizes), trace=self._trace,
            output_bucket=self._decoder.first_bucket,
        )  # fmt: skip
        return loops.RefillQueue(state, tags, count, np.zeros_like(count)), sizes

    def _arguments(self, rows: Sequence[_Row | None], sizes: Sizes) -> tuple:
        """Arguments that start some rows, filled up with rows that have ended."""
        count = self._batch_size
        inputs, prefix = (np.zeros((count, size), np.int32) for size in sizes)
        prompt = Prompt(inputs, np.zeros(count, np.int32), prefix, np.ones(count, np.int32))
        row_ids = np.full(count, -1, np.int32)
        for index, row in enumerate(rows):
            if row is not None:
                opened, place = row
                row_ids[index] = opened.batch.row_ids[place]
                for name, array in vars(prompt).items():
                    array[index] = getattr(opened.batch.prompt, name)[place]
        return self._decoder.arguments(Batch(prompt, row_ids))

    def _keep(self, results: R, tags: np.ndarray) -> None:
        """Keeps the results of the rows with these tags; -1 for none."""
        for index in np.flatnonzero(tags >= 0):
            opened, place = self._going.pop(int(tags[index]))
            opened.results[place] = jax.tree.map(lambda leaf, i=index: leaf[i].copy(), results)
            opened.missing -= 1


def _stacked(results: Sequence[Any]) -> Any:
    """Rows as a batch; zeros fill up shorter rows, and rows without a result."""
    known = [index for index, result in enumerate(results) if result is not None]

    def joined(*leaves):
        shape = tuple(max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True))
        whole = np.zeros((len(results), *shape), leaves[0].dtype)
        for index, leaf in zip(known, leaves, strict=True):
            whole[(index, *map(slice, leaf.shape))] = leaf
        return whole

    return jax.tree.map(joined, *(results[index] for index in known))
