"""Runs systems side by side: a process each, repetitions interleaved, all results compared."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.benchmarks.systems import SYSTEMS
from specdec.benchmarks.workload import Workload, WorkloadError
from specdec.measure.progress import Progress, say
from specdec.measure.timing import Spread

# OpenMP's threads go on spinning for a while, 0.2 s by some libraries' default.
REST_SECONDS = 0.3
SAME_WEIGHTS = 0.9  # Of the rows, an exact system must begin like the reference.


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one system did with one workload; all but the first two are None where it is absent.

    Attributes:
      system: its name.
      absent: why it did not run; None if it did.
      seconds: of each repetition, all rows, encoders included.
      first_token_seconds: of each repetition, decodes of one token a row.
      num_tokens: emitted in one repetition.
      same_rows: rows with the reference's tokens but for the last, which some cannot let be EOS.
      load_seconds: to read the weights, with what the library converts or packs.
      compile_seconds: what the first run took longer than the median of the later ones.
      memory_bytes: most that was in use beyond the imported libraries, loading included; of the
        accelerator where there is one.
      versions: of what ran.
    """

    system: str
    absent: str | None = None
    seconds: tuple[float, ...] | None = None
    first_token_seconds: tuple[float, ...] | None = None
    num_tokens: int | None = None
    same_rows: int | None = None
    load_seconds: float | None = None
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    versions: Mapping[str, str] | None = None

    def ms_per_token(self) -> Spread | None:
        """Whole decodes, over the repetitions."""
        if self.seconds is None or not self.num_tokens:
            return None
        return Spread.of(1e3 * seconds / self.num_tokens for seconds in self.seconds)

    def speedup_over(self, other: Measurement) -> Spread | None:
        """How many times less a token takes than with ``other``, repetition by repetition."""
        if self.seconds is None or other.seconds is None:
            return None
        assert self.num_tokens
        assert other.num_tokens
        ratio = self.num_tokens / other.num_tokens
        return Spread.of(
            theirs / ours * ratio for ours, theirs in zip(self.seconds, other.seconds, strict=True)
        )


def check_systems(workload: Workload, systems: Sequence[str]) -> None:
    """Raises WorkloadError for systems that are unknown or cannot do the workload."""
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown:
        raise WorkloadError(f"Unknown system {unknown[0]!r}; there are {', '.join(SYSTEMS)}.")
    if not systems or systems[0] != "specdec autoregressive":
        raise WorkloadError(
            'The first system must be "specdec autoregressive": the others are compared with it.'
        )
    others = [name for name in systems if not SYSTEMS[name].own]
    if not others:
        return
    if workload.temperature > 0:
        raise WorkloadError(f"Workload {workload.name}: {others[0]} is compared greedily only.")
    if workload.lengths is None and workload.batch_size > 1:
        raise WorkloadError(
            f"Workload {workload.name}: rows that end by themselves are compared one at a time."
        )
    if workload.target.checkpoint is None or workload.draft.checkpoint is None:
        raise WorkloadError(
            f"Workload {workload.name}: {others[0]} needs a checkpoint of the random weights; "
            "export them first."
        )


def measure(
    workload: Workload, systems: Sequence[str], repetitions: int, options: Mapping[str, Any]
) -> list[Measurement]:
    """Measures each system on a workload.

    The systems' processes wait while another works. Every other repetition goes the other way
    round. Each has run everything once before.

    Args:
      systems: names in :data:`specdec.benchmarks.systems.SYSTEMS`, specdec's plain decoding first.
      options: "threads", and what a system needs of its own.

    Raises:
      WorkloadError: see :func:`check_systems`; or a system emitted another number of tokens than
        it was to, or plainly decodes other weights.
      RuntimeError: a system failed.
    """
    check_systems(workload, systems)
    if repetitions < 1:
        raise WorkloadError(f"There must be at least one repetition, got {repetitions}.")
    workers: dict[str, _Worker] = {}
    try:
        for place, name in enumerate(systems, start=1):
            say(f"Loading {name}, {place} of {len(systems)} systems")
            workers[name] = _Worker(name, options["threads"])
            workers[name].load(workload, options)
        return _measure(workload, workers, repetitions)
    finally:
        for worker in workers.values():
            worker.close()


def _measure(
    workload: Workload, workers: Mapping[str, _Worker], repetitions: int
) -> list[Measurement]:
    present = [worker for worker in workers.values() if worker.absent is None]
    lengths: Sequence[int] | None = workload.lengths
    reference: list[list[int]] = []
    for worker in present:
        say(f"First run of {worker.name}, which compiles")
        worker.first = worker.run(lengths)
        tokens = worker.first["tokens"]
        reference = reference or tokens
        _check(worker.name, workload, tokens, reference)
        lengths = [len(row) for row in reference]
        worker.run(lengths, first_token=True)
    with Progress(repetitions * len(present), "runs") as progress:
        for number in range(repetitions):
            for worker in present if number % 2 == 0 else reversed(present):
                progress.set_description(f"{worker.name}, repetition {number + 1} of {repetitions}")
                worker.seconds.append(worker.run(lengths)["seconds"])
                worker.first_token_seconds.append(worker.run(lengths, first_token=True)["seconds"])
                progress.add()
    return [worker.measurement(reference) for worker in workers.values()]


def _check(
    name: str,
    workload: Workload,
    tokens: Sequence[Sequence[int]],
    reference: Sequence[Sequence[int]],
) -> None:
    """Raises WorkloadError if a system did something else than the reference."""
    if workload.temperature > 0:
        return
    for row, (ours, theirs) in enumerate(zip(tokens, reference, strict=True)):
        if len(ours) != len(theirs):
            raise WorkloadError(
                f"Workload {workload.name}: {name} emitted {len(ours)} tokens for row {row} where "
                f"{len(theirs)} were asked of it."
            )
    if not SYSTEMS[name].exact or workload.forced_alpha is not None:
        return
    begun = sum(a[0] == b[0] for a, b in zip(tokens, reference, strict=True))
    if begun < SAME_WEIGHTS * len(reference):
        raise WorkloadError(
            f"Workload {workload.name}: only {begun} of {len(reference)} rows of {name} begin with "
            "the reference's token; it does not decode the same weights."
        )


class _Worker:
    """A system, seen from here."""

    def __init__(self, name: str, threads: int):
        self.name = name
        self.absent: str | None = None
        self.seconds: list[float] = []
        self.first_token_seconds: list[float] = []
        self.first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._process = _Process(name, threads)

    def load(self, workload: Workload, options: Mapping[str, Any]) -> None:
        """Loads the system, or learns why it is absent."""
        entry = SYSTEMS[self.name]
        setup = {
            "workload": workload.to_json(), "module": entry.module, "method": entry.method,
            "needs": entry.needs, "options": dict(options),
        }  # fmt: skip
        self._ready = self._process.ask(setup)
        self.absent = self._ready.get("absent")

    def run(self, lengths: Sequence[int] | None, first_token: bool = False) -> dict[str, Any]:
        """One repetition."""
        asked = {"lengths": None if lengths is None else list(lengths), "first_token": first_token}
        self._last = self._process.ask(asked)
        time.sleep(REST_SECONDS)
        return self._last

    def measurement(self, reference: Sequence[Sequence[int]]) -> Measurement:
        """What was found."""
        if self.absent is not None:
            return Measurement(self.name, self.absent)
        tokens, memory = self.first["tokens"], self._last["memory"]
        steady = Spread.of(self.seconds).median
        return Measurement(
            self.name,
            seconds=tuple(self.seconds),
            first_token_seconds=tuple(self.first_token_seconds),
            num_tokens=sum(len(row) for row in tokens),
            same_rows=sum(a[:-1] == b[:-1] for a, b in zip(tokens, reference, strict=True)),
            load_seconds=self._ready["load_seconds"],
            compile_seconds=max(0.0, self.first["seconds"] - steady),
            memory_bytes=self._last["device_peak"] or memory["peak"] - memory["imported"],
            versions=self._ready["versions"],
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


class _Process:
    """A running ``specdec.benchmarks.worker``, which answers a JSON line with one."""

    def __init__(self, name: str, threads: int):
        self._name = name
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "specdec.benchmarks.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            text=True, env=environment,
        )  # fmt: skip

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a question and waits.

        Raises:
          RuntimeError: the process failed; the message ends with the last line it said.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._said.seek(0)
            last = self._said.read().strip().splitlines()[-1:]
            raise RuntimeError(": ".join([self._name, "its process ended", *last]))
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()
        self._said.close()
