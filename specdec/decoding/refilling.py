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
Sizes = tuple[tuple[int, ...], ...]  # Of a row's arrays: inputs, prefix and what else it has.


class _Rows:
    """Rows of batches in their order: those to start, and what those that ended came to.

    A row's tag is its index among all rows.
    """

    def __init__(self, batches: Iterable[Batch]):
        self._batches = iter(batches)
        self._waiting: collections.deque[tuple[Batch, int]] = collections.deque()
        self._under_way: collections.deque[tuple[Batch, range]] = collections.deque()  # With tags.
        self._results: dict[int, Any] = {}  # By tag.
        self._count = 0

    def sizes(self) -> Sizes | None:
        """Shapes of the next row's arrays; None where there is no row."""
        while not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                return None
            rows = np.flatnonzero(batch.row_ids >= 0)
            self._under_way.append((batch, range(self._count, self._count + len(rows))))
            self._count += len(rows)
            self._waiting.extend((batch, int(row)) for row in rows)
        return tuple(shape[1:] for shape in self._waiting[0][0].shape)

    def take(self, most: int) -> list[tuple[Batch, int]]:
        """The next rows of the same sizes."""
        taken, sizes = [], self.sizes()
        while len(taken) < most and self.sizes() == sizes:
            taken.append(self._waiting.popleft())
        return taken

    def keep(self, results: Any, tags: np.ndarray) -> None:
        """Keeps the results of the rows with these tags; -1 for none."""
        for index in np.flatnonzero(tags >= 0):
            row = jax.tree.map(lambda leaf, i=index: leaf[i].copy(), results)
            self._results[int(tags[index])] = row

    def done(self) -> Iterator[tuple[Batch, Any]]:
        """The first batches all of whose rows have ended."""
        while self._under_way and all(tag in self._results for tag in self._under_way[0][1]):
            batch, tags = self._under_way.popleft()
            yield batch, _stacked(batch, [self._results.pop(tag) for tag in tags])


class Refilled(Generic[R]):
    """Decodes batches of as many rows each.

    Attributes:
      blocks: number that its loops have run so far.
    """

    def __init__(
        self, decoder: LoopDecoder[R], batch_size: int, trace: bool, limit: int | None = None
    ):
        self.blocks = 0
        self._decoder, self._trace, self._limit = decoder, trace, limit
        self._loop, self._batch_size = decoder.loop, batch_size
        self._groups = ways(decoder.target.partitioning, "batch")
        self._started = 0  # Rows so far.
        self._form: Any = None  # Dtypes and structure of a prompt.

    def decode(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, R]]:
        """Yields each batch with its result."""
        queue = _Rows(batches)
        while queue.sizes() is not None:
            yield from self._until_smaller(queue)

    def _until_smaller(self, queue: _Rows) -> Iterator[tuple[Batch, R]]:
        """Decodes for as long as rows follow whose inputs and prefixes are of no smaller size."""
        size, capacity = self._batch_size, self._decoder.first_bucket
        waiting, sizes = self._next(queue)
        state = loops.emptied(self._loop, waiting.state)
        tags = np.full(size, -1, np.int32)
        while True:
            following = queue.sizes()
            joins = following and all(
                a >= b for a, b in zip(_flat(following), _flat(sizes), strict=True)
            )
            found = loops.refill(
                self._loop, self._decoder.loop_params, state, tags, waiting, 1 if joins else size,
                output_bucket=capacity, size=self._decoder.output_bucket,
            )  # fmt: skip
            state, found = found.state, to_host(dataclasses.replace(found, state=None))
            tags, finished = np.array(found.tags), found.status.finished
            self.blocks += int(found.blocks)
            queue.keep(found.left, np.asarray(found.replaced))
            queue.keep(found.result, np.where(finished, tags, -1))
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

    def _next(self, queue: _Rows) -> tuple[loops.RefillQueue[Any], Sizes]:
        """The next rows, started."""
        sizes = queue.sizes()
        assert sizes
        rows = queue.take(self._batch_size)
        leaves, tree = jax.tree.flatten(rows[0][0].prompt)
        self._form = [leaf.dtype for leaf in leaves], tree
        each = self._batch_size // self._groups
        # As many in each group, but for the last ones.
        indices = np.arange(self._batch_size).reshape(each, self._groups).T.reshape(-1)
        tags = np.where(indices < len(rows), self._started + indices, -1).astype(np.int32)
        count = np.sum(tags.reshape(self._groups, each) >= 0, axis=1, dtype=np.int32)
        places = [rows[index] if index < len(rows) else None for index in indices]
        self._started += len(rows)
        state = loops.start(
            self._loop, *self._arguments(places, sizes), trace=self._trace,
            output_bucket=self._decoder.first_bucket,
        )  # fmt: skip
        return loops.RefillQueue(state, tags, count, np.zeros_like(count)), sizes

    def _arguments(self, rows: Sequence[tuple[Batch, int] | None], sizes: Sizes) -> tuple:
        """Arguments that start some rows, filled up with rows that have ended."""
        count, (dtypes, tree) = self._batch_size, self._form
        arrays = [
            np.zeros((count, *size), dtype) for size, dtype in zip(sizes, dtypes, strict=True)
        ]
        prompt: Prompt = jax.tree.unflatten(tree, arrays)
        prompt.prefix_lengths[:] = 1
        row_ids = np.full(count, -1, np.int32)
        for index, row in enumerate(rows):
            if row is not None:
                batch, place = row
                row_ids[index] = batch.row_ids[place]
                for array, given in zip(arrays, jax.tree.leaves(batch.prompt), strict=True):
                    array[index] = given[place]
        params, *given, limit, seed = self._decoder.arguments(Batch(prompt, row_ids))
        return params, *given, limit if self._limit is None else self._limit, seed


def _flat(sizes: Sizes) -> list[int]:
    return [size for shape in sizes for size in shape]


def _stacked(batch: Batch, results: Sequence[Any]) -> Any:
    """Rows as a batch; zeros fill up shorter rows, and the batch."""
    rows = np.flatnonzero(batch.row_ids >= 0)

    def joined(*leaves):
        shape = tuple(max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True))
        whole = np.zeros((len(batch.row_ids), *shape), leaves[0].dtype)
        for row, leaf in zip(rows, leaves, strict=True):
            whole[(row, *map(slice, leaf.shape))] = leaf
        return whole

    return jax.tree.map(joined, *results)
