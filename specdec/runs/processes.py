"""Processes that do one run together, on JAX's distributed runtime, and the rows of each.

With a mesh all of them hold one target. They decode every batch together, and process 0 writes.

Without one each process holds the pair on its own devices. Process i of n decodes batches i, i + n,
i + 2n, ... and appends them to a file of its own. At the end the parts are exchanged and merged.

Both make the bytes that one process would have written, and need no shared disk. A failure in one
process is an error in all (:meth:`Processes.together`), so that none waits for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils

from specdec.core.files import written
from specdec.core.processes import ProcessGone, exchange
from specdec.runs.command_line import FAILURE, report_error

T = TypeVar("T")

DECODES = "decodes.jsonl"
TIMEOUT_SECONDS = 300
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # How JAX's messages of that begin.
_BATCHES_A_ROUND = 64


class ProcessError(OSError):
    """Another process of the run failed."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among all of a run, which come to each method here in the same order.

    Process 0 writes what belongs to all. For a run of one, nothing here does anything.

    Attributes:
      one_target: whether they hold one target together, and not a copy each.
    """

    index: int = 0
    count: int = 1
    one_target: bool = False

    @property
    def sharing_target(self) -> Processes:
        """Processes that hold one target with this one."""
        return self if self.one_target else ALONE

    @property
    def sharing_batches(self) -> Processes:
        """Processes among which batches are dealt out."""
        return ALONE if self.one_target else self

    def exchange(self, mine: bytes) -> list[bytes]:
        """The bytes of each process, by index; raises ProcessGone if one has gone."""
        return [mine] if self.count == 1 else exchange(mine)

    def agreed(self, value: T) -> T:
        """Process 0's value."""
        return value if self.count == 1 else pickle.loads(self.exchange(pickle.dumps(value))[0])

    def first(self, work: Callable[[], T]) -> T:
        """Result of process 0's work, for all; ProcessError in the others if that fails."""
        found: Any = None  # Of the others.
        with self.together():
            if not self.index:
                found = work()
        return self.agreed(found)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Raises ProcessError where what is done here ended well, if it did not in another process.

        Not to be nested.
        """
        failure = None
        try:
            yield
        except (ProcessError, ProcessGone):
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

    def stopped(self, step: int, by: signal.Signals | None) -> signal.Signals | None:
        """The signal for which this process stops at this step, counted from 0; None: it goes on.

        All stop at the same step because one got SIGTERM, which JAX notes for them, and
        where they share a target also by another signal.

        Args:
          by: the signal that this process has noted.
        """
        if self.count == 1:
            return by
        if multihost_utils.reached_preemption_sync_point(step):
            return signal.SIGTERM
        if not self.one_target:
            return by
        return next(filter(None, map(pickle.loads, self.exchange(pickle.dumps(by)))), None)


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
            shutdown_timeout_seconds=timeout_seconds,
        )  # fmt: skip
        return Processes(jax.process_index(), jax.process_count())
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Cannot join the other processes of this run: {reason}") from None
    finally:
        giving_up.cancel()


@contextlib.contextmanager
def ending_with_others(processes: Processes) -> Iterator[None]:
    """Ends this process, with one line on stderr, as soon as another one is found to have gone.

    At once: at a usual end JAX waits for all of them, then ends with a stack trace of its own.
    """
    try:
        yield
    except (ProcessGone, jax.errors.JaxRuntimeError) as error:
        if processes.count == 1 or str(error).startswith(_OUT_OF_MEMORY):
            raise
        report_error(error if isinstance(error, ProcessGone) else ProcessGone(error))
        sys.stdout.flush()
        os._exit(FAILURE)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A run's batches dealt out in turn: process i of n decodes batches i, i + n, i + 2n, ...

    Attributes:
      directory: of this process's output; it may be the others' too.
      sizes: reads again how many rows each batch of the whole run has.

    Raises:
      ValueError: the directory holds parts of a run by another number of processes.
    """

    processes: Processes
    directory: Path
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
        """Items of this process's batches."""
        return islice(of_batches, self.processes.index, None, self.processes.count)

    @functools.cached_property
    def num_mine(self) -> int:
        """Rows of this process."""
        return sum(self.mine(self.sizes()))

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
