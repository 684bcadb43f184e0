"""Processes that do one run together, on JAX's distributed runtime, and the rows of each.

Models are not spread over processes: each process holds the pair on its own devices. Process i of n
decodes batches i, i + n, i + 2n, ... and appends them to a file of its own. At the end the parts
are exchanged and merged into the bytes that one process would have written, so no disk is shared.
A failure in one process is an error in all (:meth:`Processes.together`), so that none waits for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from specdec.core.files import written

T = TypeVar("T")

DECODES = "decodes.jsonl"
TIMEOUT_SECONDS = 300
_SMALLEST_MESSAGE = 1024
_BATCHES_A_ROUND = 64


class ProcessError(OSError):
    """Another process of the run failed or has gone."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among all of a run, which come to each method here in the same order.

    Process 0 writes what belongs to all. For a run of one, nothing here does anything.
    """

    index: int = 0
    count: int = 1

    def exchange(self, mine: bytes) -> list[bytes]:
        """What each process gave, by index; raises ProcessError if one has gone."""
        if self.count == 1:
            return [mine]
        try:
            sizes = multihost_utils.process_allgather(np.int32(len(mine))).tolist()
            # A power of two, so that few programs are compiled.
            longest = max(_SMALLEST_MESSAGE, 1 << (max(sizes) - 1).bit_length())
            padded = np.zeros(longest, np.uint8)
            padded[: len(mine)] = np.frombuffer(mine, np.uint8)
            given = multihost_utils.process_allgather(padded)
        except jax.errors.JaxRuntimeError as error:
            raise ProcessError(
                "Another process of this run has gone; its own messages say why. Start all of "
                "them again with the same output directories to go on."
            ) from error
        return [row[:size].tobytes() for row, size in zip(given, sizes, strict=True)]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Raises ProcessError where what is done here ended well, if it did not in another process.

        Not to be nested.
        """
        failure = None
        try:
            yield
        except ProcessError:
            raise
        except SystemExit as error:
            failure, said = error, "stopped."
        except Exception as error:
            failure, said = error, str(error) or type(error).__name__
        reasons = self.exchange(said.encode() if failure else b"")
        if failure:
            raise failure
        for index, reason in enumerate(reasons):
            if reason:
                raise ProcessError(f"Process {index} of {self.count}: {reason.decode()}")

    def check_same(self, text: str) -> None:
        """Raises ValueError, in every process, unless all give the same text."""
        known, *others = (given.decode().splitlines() for given in self.exchange(text.encode()))
        for index, other in enumerate(others, start=1):
            pairs = zip_longest(known, other, fillvalue="nothing")
            for first, second in (pair for pair in pairs if pair[0] != pair[1]):
                raise ValueError(
                    f"Process {index} of {self.count} does another run than process 0: it has "
                    f"{second!r} where that has {first!r}. Start all with the same files, weights "
                    "and settings."
                )

    def preempted(self, step: int) -> bool:
        """Whether all stop at this step, counted from 0, because one was told to, by SIGTERM."""
        return self.count > 1 and multihost_utils.reached_preemption_sync_point(step)


ALONE = Processes()


def join(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None,
    timeout_seconds: int,
) -> Processes:  # fmt: skip
    """Meets the run's other processes. To be called before anything else of JAX's.

    Args:
      coordinator_address, num_processes, process_id: "host:port" of process 0, and so on; None
        where JAX detects it, as on TPU pods and under SLURM and Open MPI.
      timeout_seconds: to wait for a process that does not come, or does not answer.

    Raises:
      ValueError: an argument is missing or wrong.
      SystemExit: (of the process, at once) they did not meet in time.
    """

    def give_up() -> None:
        print(
            f"error: the processes of this run did not meet within {timeout_seconds} s. Start as "
            "many as --num_processes asks for, each with its own --process_id, all with the same "
            "--coordinator_address, which must be reachable from each; or raise --process_timeout.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        os._exit(2)

    # JAX itself would end the process with a stack trace of its own, which nothing can catch.
    giving_up = threading.Timer(timeout_seconds, give_up)
    giving_up.daemon = True
    giving_up.start()
    try:
        jax.distributed.initialize(
            coordinator_address, num_processes, process_id,
            initialization_timeout=2 * timeout_seconds, heartbeat_timeout_seconds=timeout_seconds,
        )  # fmt: skip
        return Processes(jax.process_index(), jax.process_count())
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Cannot join the other processes of this run: {reason}") from None
    finally:
        giving_up.cancel()


@dataclasses.dataclass(frozen=True)
class Parts:
    """A run's batches dealt out in turn: process i of n decodes batches i, i + n, i + 2n, ...

    Attributes:
      directory: of this process's output; it may be the others' too.
      num_rows, sizes: how many rows the whole run has; and how many each batch, read again.

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

        Raises OSError if a file cannot be written or read, here or (ProcessError) elsewhere.
        """
        count = self.processes.count
        if count == 1:
            return
        with contextlib.ExitStack() as files:
            out = None
            with self.processes.together():
                part = files.enter_context(open(self.path, "rb"))
                if not self.processes.index:
                    partial = files.enter_context(written(self.directory / DECODES))
                    out = files.enter_context(open(partial, "wb"))
            all_sizes = self.sizes()
            while sizes := list(islice(all_sizes, _BATCHES_A_ROUND * count)):
                texts = self.processes.exchange(b"".join(islice(part, sum(self.mine(sizes)))))
                lines = [iter(text.splitlines(keepends=True)) for text in texts]
                with self.processes.together():
                    for number, size in enumerate(sizes):
                        if out:
                            out.writelines(islice(lines[number % count], size))
            with self.processes.together():
                files.close()
