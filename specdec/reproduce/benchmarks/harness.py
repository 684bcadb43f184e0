"""Runs systems side by side: a process each, repetitions interleaved, all results compared."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from specdec.core.progress import Progress, say
from specdec.measure.timing import Spread
from specdec.reproduce.benchmarks import worker
from specdec.reproduce.benchmarks.contract import Workload, WorkloadError
from specdec.reproduce.benchmarks.systems import SYSTEMS

# OpenMP's threads go on spinning for a while, 0.2 s by some libraries' default.
REST_SECONDS = 0.3
SAME_WEIGHTS = 0.9  # Of the rows, an exact system must begin like the reference.

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Times and tokens of one system on one workload; an absent one has only the first two."""

    system: str  # Its name.
    absent: str | None = None  # Why it did not run; None if it did.
    seconds: tuple[float, ...] = ()  # Of each repetition, all rows, encoders included.
    first_token_seconds: tuple[float, ...] = ()  # Of each repetition, decodes of one token a row.
    num_tokens: int = 0  # Emitted in one repetition.
    # With the tokens of the system that it is compared with, but the last, which need not be EOS.
    same_rows: int = 0
    load_seconds: float = 0.0  # To read the weights, with what the library converts or packs.
    compile_seconds: float = 0.0  # Of the first run, over the median of the later ones.
    memory_bytes: int = 0  # Most in use, loading included; on CPU beyond the imported libraries.
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Of what ran.

    def ms_per_token(self) -> Spread:
        """Whole decodes, over the repetitions."""
        return Spread.of(1e3 * seconds / self.num_tokens for seconds in self.seconds)

    def speedup_over(self, other: Measurement) -> Spread:
        """Speedup of a token over ``other``, repetition by repetition."""
        ratio = self.num_tokens / other.num_tokens
        return Spread.of(
            theirs / ours * ratio for ours, theirs in zip(self.seconds, other.seconds, strict=True)
        )


def check_systems(workload: Workload, systems: Sequence[str]) -> None:
    """Raises WorkloadError for systems that are unknown or cannot do the workload."""
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown:
        raise WorkloadError(f"Unknown system {unknown[0]!r}; there are {', '.join(SYSTEMS)}.")
    first = "specdec beams" if workload.beam else "specdec autoregressive"
    if workload.recordings:
        first = "specdec transcribing"
    if not systems or systems[0] != first:
        raise WorkloadError(f'The first system must be "{first}": the others are compared with it.')
    listens = bool(workload.recordings)
    other = next((name for name in systems if SYSTEMS[name].listens != listens), "")
    does = "transcribes" if listens else "reads texts"
    workload.require(not other, f"it {does}, which {other} is not for")
    other = next((name for name in systems if bool(SYSTEMS[name].beams) != bool(workload.beam)), "")
    searches = "beams" if workload.beam else "no beams"
    workload.require(not other, f"it searches {searches}, which {other} is not for")
    other = next((name for name in systems if not SYSTEMS[name].own), None)
    if other is None:
        return
    workload.require(workload.temperature <= 0, f"{other} is compared greedily only")
    batched = any(SYSTEMS[name].at_once for name in systems) or workload.batch_size > 1
    alone = workload.lengths is not None or not batched
    workload.require(alone, "rows that end by themselves are compared one at a time")
    stored = isinstance(workload.target, str) and isinstance(workload.draft, str | None)
    workload.require(stored, f"{other} needs a checkpoint of the random weights")


def measure(
    workload: Workload, systems: Sequence[str], repetitions: int, options: Mapping[str, Any]
) -> list[Measurement]:
    """Measures each system on a workload.

    Only one system works at a time. Every other repetition is in reverse order. Each system runs
    everything once before.

    Args:
      systems: names in ``systems.SYSTEMS``, specdec's plain decoding first.
      options: "threads", and what a system needs of its own.

    Raises:
      WorkloadError: see :func:`check_systems`; or a system emitted a wrong number of tokens, or
        clearly decodes other weights.
      RuntimeError: a system failed.
    """
    check_systems(workload, systems)
    if repetitions < 1:
        raise WorkloadError(f"There must be at least one repetition, got {repetitions}.")
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(contextlib.closing(_System(name, options["threads"])))
            for name in systems
        ]
        for index, system in enumerate(running, start=1):
            say(f"Loading {system.name}, {index} of {len(running)} systems")
            system.load(workload, options)
        present = [system for system in running if "absent" not in system.loaded]
        lengths: Sequence[int] | None = workload.lengths
        reference: list[list[int]] = []
        for system in present:
            say(f"First run of {system.name}, which compiles")
            system.run(lengths)
            reference = reference or system.tokens
            check_tokens(system.name, workload, system.tokens, reference)
            if workload.beam is None:
                lengths = [len(row) for row in reference]
        with Progress(repetitions * len(present), "runs") as progress:
            for number in range(repetitions):
                for system in present if number % 2 == 0 else reversed(present):
                    progress.set_description(f"{system.name}, repetition {number + 1}")
                    system.run(lengths)
                    progress.add()
        tokens = {system.name: system.tokens for system in present}
        return [
            system.measurement(tokens.get(SYSTEMS[system.name].like, reference))
            for system in running
        ]


def check_tokens(
    name: str, workload: Workload, tokens: list[list[int]], reference: list[list[int]]
) -> None:
    """Raises WorkloadError if a system did something else than the reference."""
    if workload.temperature > 0:
        return
    pairs = list(zip(tokens, reference, strict=True))
    for row, (ours, theirs) in enumerate(pairs):
        workload.require(
            len(ours) == len(theirs) or bool(workload.beam or workload.recordings),
            f"{name} emitted {len(ours)} tokens for row {row} where {len(theirs)} were asked of it",
        )
    if SYSTEMS[name].exact and workload.forced_alpha is None:
        begun = sum(ours[0] == theirs[0] for ours, theirs in pairs)
        workload.require(
            begun >= SAME_WEIGHTS * len(pairs),
            f"only {begun} of {len(pairs)} rows of {name} begin with the reference's token; it "
            "does not decode the same weights",
        )


class _System:
    """A system in its process, with its answers; the first whole decode compiles."""

    def __init__(self, name: str, threads: int):
        self.name = name
        self.loaded: Answer = {}
        self._decodes: list[Answer] = []
        self._first_tokens: list[Answer] = []
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), worker.begin, (threads,)
        )

    def _ask(self, function: Callable[..., Answer], *args: Any) -> Answer:
        try:
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise RuntimeError(f"{self.name}: its process ended") from None
        except Exception as error:
            raise RuntimeError(f"{self.name}: {type(error).__name__}: {error}") from error

    def load(self, workload: Workload, options: Mapping[str, Any]) -> None:
        if workload.beam and workload.beam.rule not in SYSTEMS[self.name].beams:
            self.loaded = {"absent": f"its rule is not {workload.beam.rule}'s"}
        else:
            self.loaded = self._ask(worker.load, self.name, workload, options)

    def run(self, lengths: Sequence[int] | None) -> None:
        """Decodes the workload, and then one token of each row."""
        for answers, first_token in ((self._decodes, False), (self._first_tokens, True)):
            answers.append(self._ask(worker.decode, lengths, first_token))
            time.sleep(REST_SECONDS)

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens that each row emitted."""
        return self._decodes[0]["tokens"]

    def measurement(self, reference: Sequence[Sequence[int]]) -> Measurement:
        if "absent" in self.loaded:
            return Measurement(self.name, self.loaded["absent"])
        first, *seconds = (answer["seconds"] for answer in self._decodes)
        same = (a[:-1] == b[:-1] for a, b in zip(self.tokens, reference, strict=True))
        return Measurement(
            self.name, seconds=tuple(seconds),
            first_token_seconds=tuple(answer["seconds"] for answer in self._first_tokens[1:]),
            num_tokens=sum(map(len, self.tokens)), same_rows=sum(same),
            compile_seconds=max(0.0, first - statistics.median(seconds)),
            memory_bytes=self._first_tokens[-1]["memory_bytes"], **self.loaded,
        )  # fmt: skip

    def close(self) -> None:
        """Ends its process."""
        self._pool.shutdown()
