"""The fastest way to decode here, measured within a bounded time: what all choices have in common.

1. The programs of plain decoding and of a few probes are compiled, all at once.
2. They decode rows: how many guesses are accepted, and what blocks cost.
3. From that the speedup of every candidate is predicted.
4. The most promising ones decode the rows too, in turns. The fastest is chosen.

When time is up, the choice uses what is known by then, and its text says so.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from specdec.core.machine import num_cores
from specdec.core.progress import Progress
from specdec.core.stats import RunStats
from specdec.decoding.batches import Batch
from specdec.decoding.options import AutoName
from specdec.measure.choice import Candidate, Choice

T = TypeVar("T")

PLAIN = "plain decoding"
# Shares of the time by whose end something is done: the probes are compiled, those without which
# nothing can be measured, the probes are timed, the candidates compiled.
_COMPILED, _NEEDED, _PROBED, _TRIED = 0.55, 0.85, 0.7, 0.9
SECONDS: dict[AutoName, float] = {
    "gamma": 30.0,
    "tree": 60.0,
    "beams": 60.0,
}  # A choice takes at most.
_REPETITIONS = 3  # Of a row's decodes, while there is time.
_FEWEST_TOKENS = 4  # Of a row, where decoding is slow.

# Given what this process has measured, the value that all processes go on with that share a target.
Agree = Callable[[Any], Any]


def alone(value: T) -> T:
    """What one process goes on with."""
    return value


@dataclasses.dataclass(frozen=True)
class Runner:
    """What decodes a batch in one way.

    Attributes:
      lower: a batch's program, to be compiled.
      run: (batch, limit=tokens that a row may emit, or None for all) -> a result whose ``stats``
        count tokens and calls.
    """

    lower: Callable[[Batch], jax.stages.Lowered]
    run: Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Timed:
    """Decodes of some batches in one way.

    Attributes:
      seconds: of all, from the median of each batch's repetitions.
      starts: of as many decodes of one block; 0 if those were not asked for.
      results: of each batch.
    """

    seconds: float
    starts: float
    results: tuple[Any, ...]

    @property
    def tokens(self) -> int:
        """Emitted by all rows."""
        return sum(int(np.sum(each.stats.emitted)) for each in self.results)

    @property
    def calls(self) -> int:
        """Of the target; a batch goes on until its slowest row is done."""
        return sum(int(np.max(each.stats.target_calls)) for each in self.results)

    @property
    def block(self) -> float:
        """Seconds of a block without what a decode does once."""
        more = self.calls - len(self.results)
        if more <= 0 or self.seconds <= self.starts:  # Every decode was one block.
            return self.seconds / self.calls
        return (self.seconds - self.starts) / more

    @property
    def start(self) -> float:
        """Seconds of what a decode does once, its encoders above all."""
        return max(0.0, self.starts / len(self.results) - self.block)

    def stats(self, depth: int) -> RunStats:
        """Counts of all rows."""
        rows = sum(int(np.sum(each.stats.target_calls > 0)) for each in self.results)
        return RunStats.total([each.stats for each in self.results], rows, depth)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What the probes tell; see :class:`Choice`.

    Attributes:
      candidates: the most promising first.
      note: what of it is not measured.
    """

    accepted: tuple[float, ...]
    cost_ratio: float
    verify_ratio: Mapping[int, float]
    candidates: Sequence[Candidate]
    note: str = ""


class Kind(Protocol):
    """What is chosen: a gamma, a tree, or the gamma of beams."""

    @property
    def name(self) -> AutoName:
        """Which of them."""
        ...

    def probes(self) -> Mapping[str, Runner]:
        """What is measured first; PLAIN and one other are needed, and come first.

        A probe that is a candidate has its name.
        """
        ...

    def estimate(self, found: Mapping[str, Timed]) -> Estimate:
        """What the timed probes tell."""
        ...

    def assumed(self) -> Estimate:
        """The estimate if nothing was measured."""
        ...

    def shortlist(self, estimate: Estimate) -> Sequence[Candidate]:
        """The candidates to time."""
        ...

    def runner(self, candidate: Candidate) -> Runner:
        """A decoder of this shape."""
        ...


def choose(
    kind: Kind, batches: Sequence[Batch], max_decode_len: int, agree: Agree = alone
) -> Choice:
    """Measures on batches of one shape, and chooses.

    Args:
      max_decode_len: tokens a row may emit.
      agree: see :data:`Agree`.

    Raises:
      ValueError: the verifier cannot verify what the draft makes.
    """
    seconds = SECONDS[kind.name]
    with _Session(kind.name, seconds, agree) as session:
        probes = kind.probes()
        needed = list(probes)[:2]
        ready = session.compile(probes, batches[0], _COMPILED, needed)
        found, limit = {}, 0
        if all(name in ready for name in needed):
            limit = session.affordable(ready, batches[0], max_decode_len)
        if limit:
            found = session.time(
                "measuring acceptance and costs", ready, batches, _PROBED, limit, starts=True
            )
        if not found:
            estimate = kind.assumed()
            note = f"Nothing could be measured within {seconds:.0f} s: {estimate.note}"
            return _decided(kind, dataclasses.replace(estimate, note=note), {})
        estimate = kind.estimate(found)
        tried = {str(each): each for each in kind.shortlist(estimate)}
        more = {name: kind.runner(each) for name, each in tried.items() if name not in ready}
        ready |= session.compile(more, batches[0], _TRIED)
        best = {name: ready[name] for name in (PLAIN, *tried) if name in ready}
        times = {}
        if len(best) > 1:
            times = session.time("timing the best", best, batches, 1.0, limit)
    missed = [name for name in tried if name not in times]
    if missed:
        note = f"Time was up after {seconds:.0f} s; not timed: {', '.join(missed)}."
        estimate = dataclasses.replace(estimate, note=f"{estimate.note} {note}".strip())
    return _decided(kind, estimate, times)


def _decided(kind: Kind, estimate: Estimate, times: Mapping[str, Timed]) -> Choice:
    """The fastest candidate, if it is faster than plain decoding."""
    timed = [each for each in estimate.candidates if str(each) in times]
    rest = [each for each in estimate.candidates if str(each) not in times]
    candidates = (*with_speedups(timed, times), *rest)
    best = candidates[0]
    speedup = best.measured if timed else best.predicted
    pays = speedup is not None and speedup > 1
    return Choice(
        kind.name, best.shape if pays else None, estimate.accepted, estimate.cost_ratio,
        estimate.verify_ratio, candidates, estimate.note,
    )  # fmt: skip


def with_speedups(
    candidates: Sequence[Candidate], times: Mapping[str, Timed]
) -> tuple[Candidate, ...]:
    """With their speedups over PLAIN for each token, the fastest first."""

    def speedup(candidate: Candidate) -> float:
        fast, plain = times[str(candidate)], times[PLAIN]
        return fast.tokens / fast.seconds / (plain.tokens / plain.seconds)

    found = [dataclasses.replace(each, measured=speedup(each)) for each in candidates]
    return tuple(sorted(found, key=lambda each: -(each.measured or 0.0)))


def time_in_turns(
    runners: Mapping[str, Runner], batches: Sequence[Batch], *, until: float = math.inf,
    limit: int | None = None, starts: bool = False, repetitions: int = _REPETITIONS,
    passed: Callable[[], object] = lambda: None, agree: Agree = alone,
) -> dict[str, Timed]:  # fmt: skip
    """Times whole decodes of each batch in all ways, one after the other, so that a busy machine
    slows all of them alike. Each runs once before.

    Args:
      until: of ``time.monotonic``, when to stop, which leaves batches or repetitions out; the
        first batch is timed in any case.
      limit: tokens that a row may emit.
      starts: whether decodes of one block are timed too.
      passed: called after each batch.
      agree: see :data:`Agree`.
    """
    for runner in runners.values():
        runner.run(batches[0], limit=1)
    limits = (limit, 1) if starts else (limit,)
    seconds: dict[tuple[str, int | None], list[list[float]]] = {
        (name, each): [] for name in runners for each in limits
    }
    results: dict[str, list[Any]] = {name: [] for name in runners}
    turn = 0
    for repetition in range(repetitions):
        for index, batch in enumerate(batches):
            if turn and agree(time.monotonic() > until):
                break
            order = list(seconds) if turn % 2 == 0 else list(reversed(seconds))
            for name, each in order:
                began = time.perf_counter()
                result = runners[name].run(batch, limit=each)
                took = agree(time.perf_counter() - began)
                if repetition == 0:
                    seconds[name, each].append([])
                    if each == limit:
                        results[name].append(result)
                seconds[name, each][index].append(took)
            turn += 1
            passed()

    def total(name: str, each: int | None) -> float:
        return sum(map(statistics.median, seconds[name, each]))

    return {
        name: Timed(total(name, limit), total(name, 1) if starts else 0.0, tuple(results[name]))
        for name in runners
    }


class _Session:
    """A choice that is under way: what it shows, and until when its parts may last."""

    def __init__(self, name: str, seconds: float, agree: Agree):
        self._agree = agree
        self._name = f"Choosing {name}, {seconds:.0f} s at most"
        self._began, self._seconds = time.monotonic(), seconds
        self._pool, self._ended = ThreadPoolExecutor(num_cores()), False

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        # What is being compiled cannot be stopped; nobody waits for it.
        self._ended = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _left(self, share: float) -> float:
        """Seconds until a share of the time is over."""
        return self._began + share * self._seconds - time.monotonic()

    def _show(self, what: str, total: int, unit: str) -> Progress:
        progress = Progress(total, unit, until=self._began + self._seconds)
        progress.begin(f"{self._name}: {what}")
        return progress

    def compile(
        self, runners: Mapping[str, Runner], batch: Batch, share: float, needed: Sequence[str] = ()
    ) -> dict[str, Runner]:
        """Those whose programs are there in time; for those that are needed there is more."""
        waiting: dict[Future[Any], str] = {}
        ready: dict[str, Runner] = {}
        if not runners:
            return ready
        with self._show("compiling", len(runners), "programs") as progress:

            def take(timeout: float) -> None:
                for done in wait(waiting, timeout, return_when="FIRST_COMPLETED").done:
                    done.result()
                    name = waiting.pop(done)
                    ready[name] = runners[name]
                    progress.add()
                progress.refresh()

            for name, runner in runners.items():
                context = contextvars.copy_context()  # What programs are traced for is in it.
                waiting[self._pool.submit(context.run, self._compile, runner, batch)] = name
            while waiting:
                late = _NEEDED if any(name in needed for name in waiting.values()) else share
                left = self._left(max(late, share))
                if left <= 0:
                    break
                take(min(left, 1.0))
            for future in waiting:
                future.cancel()
        return {name: runners[name] for name in self._agree(list(ready))}

    def _compile(self, runner: Runner, batch: Batch) -> None:
        program = runner.lower(batch)
        if not self._ended:
            program.compile()

    def affordable(self, ready: Mapping[str, Runner], batch: Batch, max_decode_len: int) -> int:
        """Tokens of a row that each way can decode in the time that the probes have; 0 if none."""
        plain, few = ready[PLAIN], min(_FEWEST_TOKENS, max_decode_len)
        seconds = (_PROBED - _COMPILED) * self._seconds / (2 * len(ready))

        def took(limit: int) -> float:
            began = time.monotonic()
            plain.run(batch, limit=limit)
            return self._agree(time.monotonic() - began)

        took(1)  # What comes first takes longer.
        first = took(1)
        if first > seconds:
            return 0
        step = max(took(few) - first, 1e-6) / max(few - 1, 1)
        return int(np.clip((seconds - 2 * first) / step, few, max_decode_len))

    def time(
        self, what: str, ready: Mapping[str, Runner], batches: Sequence[Batch], share: float,
        limit: int, *, starts: bool = False,
    ) -> dict[str, Timed]:  # fmt: skip
        """:func:`time_in_turns`; nothing where time is up."""
        if self._agree(self._left(1.0)) <= 0:
            return {}
        with self._show(what, _REPETITIONS * len(batches), "batches") as progress:
            return time_in_turns(
                ready, batches, until=self._began + share * self._seconds, limit=limit,
                starts=starts, passed=progress.add, agree=self._agree,
            )  # fmt: skip
