"""Rows that several processes decode: who decodes which, and one file of them all."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TypeVar

from specdec.core.files import written
from specdec.runs.processes import Processes

T = TypeVar("T")

DECODES = "decodes.jsonl"
_BATCHES_A_ROUND = 64


@dataclasses.dataclass(frozen=True)
class Parts:
    """A run's batches dealt out in turn: process i of n decodes batches i, i + n, i + 2n, ...

    Attributes:
      processes: those of the run.
      directory: of this process's output; it may be the others' too.
      num_rows: of the whole run.
      sizes: reads the rows anew and tells how many are in each of the run's batches, in order.

    Raises:
      ValueError: the directory holds parts of a run by another number of processes.
    """

    processes: Processes
    directory: Path
    num_rows: int
    sizes: Callable[[], Iterator[int]]

    def __post_init__(self):
        count = self.processes.count
        for path in self.directory.glob("decodes-*-of-*.jsonl"):
            written_by = int(path.stem.rpartition("-")[2])
            done = count == 1 and (self.directory / DECODES).exists()
            if written_by != count and not done:
                raise ValueError(
                    f"{self.directory} holds a part of a run by {written_by} processes: go on with "
                    f"as many, choose another --output_dir, or remove {path.name} there."
                )

    @property
    def path(self) -> Path:
        """The file this process appends to."""
        index, count = self.processes.index, self.processes.count
        name = DECODES if count == 1 else f"decodes-{index:05}-of-{count:05}.jsonl"
        return self.directory / name

    def mine(self, of_batches: Iterable[T]) -> Iterator[T]:
        """What belongs to this process's batches."""
        return islice(of_batches, self.processes.index, None, self.processes.count)

    @functools.cached_property
    def num_mine(self) -> int:
        """Rows of this process."""
        return self.num_rows if self.processes.count == 1 else sum(self.mine(self.sizes()))

    def gather(self) -> None:
        """Puts all parts together as ``decodes.jsonl`` of process 0, as one process writes it.

        Raises:
          OSError: a file cannot be written or read, here or (ProcessError) elsewhere.
        """
        if self.processes.count == 1:
            return
        with ExitStack() as files:
            out = None
            with self.processes.together():
                part = files.enter_context(open(self.path, "rb"))
                if not self.processes.index:
                    partial = files.enter_context(written(self.directory / DECODES))
                    out = files.enter_context(open(partial, "wb"))
            for sizes in self._rounds():
                texts = self.processes.exchange(b"".join(islice(part, sum(self.mine(sizes)))))
                with self.processes.together():
                    if out:
                        out.writelines(_dealt(texts, sizes))
            with self.processes.together():
                files.close()

    def _rounds(self) -> Iterator[list[int]]:
        """Sizes of batches, the same number for each process but in the last round."""
        sizes = self.sizes()
        while some := list(islice(sizes, _BATCHES_A_ROUND * self.processes.count)):
            yield some


def _dealt(texts: list[bytes], sizes: list[int]) -> Iterator[bytes]:
    """Lines of processes' batches, in the batches' order."""
    lines = [iter(text.splitlines(keepends=True)) for text in texts]
    for number, size in enumerate(sizes):
        yield from islice(lines[number % len(texts)], size)
