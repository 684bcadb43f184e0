"""Batches decoded one into the other: rows that have ended make place for the next ones.

A batch alone waits for its slowest row. Here a loop of B rows pauses as soon as R of them have
ended. R rows of the next batches are encoded together and take their places, and the loop goes on.
Shapes are static all the same: B, R, and the buckets of inputs and outputs.

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
from specdec.decoding.batches import Batch, bucket
from specdec.models.partitioning import ways
from specdec.types import Prompt

if TYPE_CHECKING:
    from specdec.decoding.batch_decoder import LoopDecoder

R = TypeVar("R")

# A refill takes a batch's rows by this, rounded down, or one. Fewer are encoded less efficiently,
# more wait longer for each other.
REFILLS = 8


@dataclasses.dataclass
class _Open:
    """A batch under way."""

    batch: Batch
    results: list[Any]  # Of each row, what it came to; None before, and for rows that fill up.
    missing: int


class _Queue:
    """Rows that wait, of the batches in their order."""

    def __init__(self, batches: Iterable[Batch]):
        self._batches = iter(batches)
        self._waiting: collections.deque[tuple[_Open, int]] = collections.deque()
        self.open: collections.deque[_Open] = collections.deque()

    def sizes(self) -> tuple[int, int] | None:
        """Sizes of the next row's inputs and prefix; None where there is none."""
        while not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                return None
            rows = np.flatnonzero(batch.row_ids >= 0)
            opened = _Open(batch, [None] * len(batch.row_ids), len(rows))
            self.open.append(opened)
            self._waiting.extend((opened, int(row)) for row in rows)
        prompt = self._waiting[0][0].batch.prompt
        return prompt.inputs.shape[1], prompt.prefix.shape[1]

    def take(self, most: int) -> list[tuple[_Open, int]]:
        """The next rows of the same sizes."""
        taken, sizes = [], self.sizes()
        while len(taken) < most and self.sizes() == sizes:
            taken.append(self._waiting.popleft())
        return taken

    def done(self) -> Iterator[tuple[Batch, Any]]:
        """The first batches all of whose rows have ended."""
        while self.open and not self.open[0].missing:
            opened = self.open.popleft()
            yield opened.batch, _stacked(opened.results)


class Refilled(Generic[R]):
    """Decodes batches with a decoder.

    Attributes:
      blocks: that its loops have run so far.
    """

    def __init__(self, decoder: LoopDecoder[R], trace: bool):
        self._decoder, self._trace = decoder, trace
        self._loop, self._params = decoder.loop, decoder.loop_params
        self.blocks = 0

    def decode(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, R]]:
        """Yields each batch with what it came to."""
        queue = _Queue(batches)
        while (sizes := queue.sizes()) is not None:
            yield from self._until_smaller(queue, sizes)

    def _until_smaller(self, queue: _Queue, sizes: tuple[int, int]) -> Iterator[tuple[Batch, R]]:
        """Decodes rows as long as those that follow have inputs and prefixes of no smaller size."""
        decoder = self._decoder
        batch_size = len(queue.open[0].batch.row_ids)
        groups, on_mesh = ways(mesh := decoder.target.partitioning, "batch"), mesh is not None
        each = max(1, batch_size // (REFILLS * groups))
        capacity = decoder.first_bucket
        state = self._empty(batch_size, sizes, capacity, on_mesh)
        rows: list[tuple[_Open, int] | None] = [None] * batch_size
        while True:
            following = queue.sizes()
            while following and all(a >= b for a, b in zip(following, sizes, strict=True)):
                free = _free(rows, groups, each)
                if free is None:
                    break
                if following != sizes:
                    sizes = following
                    state = self._resized(state, batch_size, sizes, capacity)
                state = self._refilled(state, queue.take(free.size), free, rows, sizes, capacity)
                following = queue.sizes()
            if all(row is None for row in rows):
                return
            goes_on = following and all(a >= b for a, b in zip(following, sizes, strict=True))
            wanted = each if goes_on else batch_size // groups
            state, status, result = loops.resume(
                self._loop, self._params, state, wanted, output_bucket=capacity,
                size=decoder.output_bucket, groups=groups,
            )  # fmt: skip
            finished = np.asarray(status.finished)
            self.blocks += int(status.blocks)
            result = jax.tree.map(np.asarray, result)
            for index in np.flatnonzero(finished):
                if (row := rows[index]) is not None:
                    opened, place = row
                    opened.results[place] = jax.tree.map(lambda a, i=index: a[i].copy(), result)
                    opened.missing -= 1
                    rows[index] = None
            yield from queue.done()
            most = int(np.max(np.where(finished, 1, status.needs)))
            needed = max(decoder.first_bucket, bucket(most))
            if needed != capacity:
                capacity = needed
                state = self._resized(state, batch_size, sizes, capacity)

    def _empty(self, batch_size: int, sizes: tuple[int, int], capacity: int, on_mesh: bool) -> Any:
        given = self._arguments([], batch_size, sizes)
        return loops.idle(
            self._loop, *given, output_bucket=capacity, trace=self._trace, on_mesh=on_mesh
        )

    def _refilled(
        self, state: Any, taken: Sequence[tuple[_Open, int]], free: np.ndarray,
        rows: list[tuple[_Open, int] | None], sizes: tuple[int, int], capacity: int,
    ) -> Any:  # fmt: skip
        """The state with the rows taken where there is a place for them."""
        params, *given = self._arguments(taken, free.size, sizes)
        groups, _ = free.shape
        places = free + np.arange(groups)[:, None] * (len(rows) // groups)
        for index, row in zip(places.reshape(-1), taken, strict=False):
            rows[index] = row
        return loops.refill(
            self._loop, params, state, free, *given, output_bucket=capacity, trace=self._trace
        )

    def _resized(self, state: Any, batch_size: int, sizes: tuple[int, int], capacity: int) -> Any:
        params, *given = self._arguments([], batch_size, sizes)
        return loops.resized(
            self._loop, params, state, *given, output_bucket=capacity, trace=self._trace
        )

    def _arguments(
        self, taken: Sequence[tuple[_Open, int]], count: int, sizes: tuple[int, int]
    ) -> tuple:
        """What starts some rows, filled up with rows that have ended."""
        inputs, prefix = (np.zeros((count, size), np.int32) for size in sizes)
        prompt = Prompt(inputs, np.zeros(count, np.int32), prefix, np.ones(count, np.int32))
        row_ids = np.full(count, -1, np.int32)
        for index, (opened, place) in enumerate(taken):
            row_ids[index] = opened.batch.row_ids[place]
            own = opened.batch.prompt
            for name, array in vars(prompt).items():
                array[index] = getattr(own, name)[place]
        return self._decoder.arguments(Batch(prompt, row_ids))


def _free(rows: Sequence[tuple[_Open, int] | None], groups: int, each: int) -> np.ndarray | None:
    """[G, ``each``] free rows, counted inside their group; None if one has not so many."""
    empty = np.array([row is None for row in rows]).reshape(groups, -1)
    if np.min(np.sum(empty, axis=1)) < each:
        return None
    return np.stack([np.flatnonzero(group)[:each] for group in empty]).astype(np.int32)


def _stacked(results: Sequence[Any]) -> Any:
    """Rows as a batch; zeros fill up what is shorter, and rows without a result."""
    known = [index for index, result in enumerate(results) if result is not None]

    def joined(*leaves):
        shape = tuple(max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True))
        whole = np.zeros((len(results), *shape), leaves[0].dtype)
        for index, leaf in zip(known, leaves, strict=True):
            whole[(index, *map(slice, leaf.shape))] = leaf
        return whole

    return jax.tree.map(joined, *(results[index] for index in known))
