"""The fastest way to decode here, measured within a bounded time: what all choices have in common.

1. The programs of plain decoding and of a few probes are compiled, all at once.
2. They decode rows: how many guesses are accepted, and what blocks cost.
3. From that the speedup of every candidate is predicted.
4. The most promising ones decode the rows too, in turns. The fastest is chosen.

When time is up, the choice is made by what is known by then, and its text tells so.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import jax
import numpy as np

from specdec.arguments import positive, real, whole
from specdec.core.files import read_object, write_json
from specdec.core.machine import num_cores
from specdec.core.stats import RunStats
from specdec.core.theory_beams import levels_per_call
from specdec.decoding.batches import Batch
from specdec.drafters.tree import MOST_NODES, Tree
from specdec.measure.progress import Progress

Name = Literal["gamma", "tree", "beams"]  # What is chosen.
PLAIN = "plain decoding"
# Shares of the time by whose end something is done: the probes are compiled, those without which
# nothing can be measured, the probes are timed, the candidates compiled.
_COMPILED, _NEEDED, _PROBED, _TRIED = 0.55, 0.85, 0.7, 0.9
SECONDS: dict[Name, float] = {"gamma": 30.0, "tree": 60.0, "beams": 60.0}  # A choice takes at most.
_REPETITIONS = 3  # Of a row's decodes, while there is time.
_FEWEST_TOKENS = 4  # Of a row, where decoding is slow.


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to decode.

    Attributes:
      gamma: guesses of a chain, or levels of a draft's beams; 0 for a tree.
      tree: None for a chain or for beams.
      tokens: that a block emits, or levels that a call advances, as predicted; None where the
        shape is found while decoding.
      predicted: speedup over plain decoding.
      measured: that of whole decodes, for each token; None where there was none.

    Raises:
      ValueError: a field of another type or out of range, or not one of gamma and tree.
    """

    gamma: int
    tree: Tree | None
    tokens: float | None = None
    predicted: float | None = None
    measured: float | None = None

    def __post_init__(self):
        whole("gamma", self.gamma, 0, MOST_NODES)
        if not isinstance(self.tree, Tree | None) or (self.tree is None) != bool(self.gamma):
            raise ValueError(
                f"A candidate is a gamma or a Tree, got {self.gamma} and {self.tree!r}."
            )
        for name in ("tokens", "predicted", "measured"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value, "above 0")

    def __str__(self) -> str:
        return str(self.tree) if self.tree else f"gamma {self.gamma}"

    @property
    def levels(self) -> int:
        """Guesses in a row."""
        return self.tree.levels if self.tree else self.gamma


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fastest way found; neither gamma nor tree is plain decoding. ``print`` gives the reason.

    Attributes:
      name: what was chosen.
      gamma: guesses of a chain, or levels of a draft's beams.
      accepted: how likely each guess of a position is to be the one that is accepted, by its rank;
        a chain's one is alpha. Of beams: the share of calls that advanced 0, 1, 2, ... levels.
      cost_ratio: c of a level of one guess; of beams, of a level of them.
      verify_ratio: v by the guesses of a call.
      candidates: the fastest first; those that were timed before those that were not.
      note: what was not measured, as time was up; empty if nothing.

    Raises:
      ValueError: a field of another type or out of range, or a choice that is no candidate.
    """

    name: Name
    gamma: int
    tree: Tree | None
    accepted: tuple[float, ...]
    cost_ratio: float
    verify_ratio: Mapping[int, float]
    candidates: tuple[Candidate, ...]
    note: str = ""

    def __post_init__(self):
        if self.name not in get_args(Name):
            raise ValueError(f"name must be one of {', '.join(get_args(Name))}, got {self.name!r}.")
        whole("gamma", self.gamma, 0, MOST_NODES)
        if not self.accepted:
            raise ValueError("accepted must have a probability at least.")
        for each in self.accepted:
            real("each of accepted", each, "a probability", 0, 1)
        real("cost_ratio", self.cost_ratio, "at least 0", 0)
        for size, each in self.verify_ratio.items():
            whole("each size of verify_ratio", size, 1)
            positive("each of verify_ratio", each, "above 0")
        if not isinstance(self.note, str):
            raise ValueError(f"note must be a text, got {self.note!r}.")
        ways = [(each.gamma, each.tree) for each in self.candidates]
        if not ways or (self.gamma, self.tree) not in [(0, None), ways[0]]:
            raise ValueError("The choice must be plain decoding or the first candidate.")

    @property
    def alpha(self) -> float:
        """How likely the first guess of a position is to be accepted."""
        return self.accepted[0]

    @property
    def levels(self) -> int:
        """Guesses in a row; 0 for plain decoding."""
        return self.candidates[0].levels if self.gamma or self.tree else 0

    def __str__(self) -> str:
        best = self.candidates[0]
        speedup = best.predicted if best.measured is None else best.measured
        how = "predicted" if best.measured is None else "measured here"
        if speedup is None:
            head = "Decoding plainly."
        elif self.gamma or self.tree:
            head = f"{best}: {speedup:.2f} x plain decoding, {how}."
        else:
            head = (
                f"Speculation does not pay here: the best way, {best}, is {speedup:.2f} times as "
                f"fast as plain decoding, {how}. Decoding plainly."
            )
        timed = [each for each in self.candidates[1:] if each.measured is not None]
        if timed:
            head += f" Others: {', '.join(f'{each} {each.measured:.2f}' for each in timed)}."
        ranks = "/".join(f"{each:.2f}" for each in self.accepted[:4])
        accepted = {"gamma": f"alpha {ranks}", "tree": f"acceptance by rank {ranks}"}.get(self.name)
        if accepted is None:
            most = len(self.accepted) - 2
            accepted = f"{levels_per_call(self.accepted, most):.2f} levels a call with gamma {most}"
        sizes = "".join(f", v({size}) {v:.2f}" for size, v in self.verify_ratio.items())
        parts = (head, f"With {accepted}, c {self.cost_ratio:.2f}{sizes}.", self.note)
        return " ".join(filter(None, parts))


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
    def name(self) -> Name:
        """Which of them."""
        ...

    def probes(self) -> Mapping[str, Runner]:
        """What is measured first; PLAIN and one other are needed, and come first.

        A probe that is a candidate has its name.
        """
        ...

    def estimate(self, found: Mapping[str, Timed]) -> Estimate:
        """What the probes tell that were timed."""
        ...

    def assumed(self) -> Estimate:
        """What is taken to be so where nothing was measured."""
        ...

    def shortlist(self, estimate: Estimate) -> Sequence[Candidate]:
        """What is worth being timed."""
        ...

    def runner(self, candidate: Candidate) -> Runner:
        """What decodes so."""
        ...


def choose(kind: Kind, batches: Sequence[Batch], max_decode_len: int) -> Choice:
    """Measures on batches of one shape, and chooses.

    Args:
      max_decode_len: tokens a row may emit.

    Raises:
      ValueError: the verifier cannot verify what the draft makes.
    """
    seconds = SECONDS[kind.name]
    with _Session(kind.name, seconds) as session:
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
        kind.name, best.gamma if pays else 0, best.tree if pays else None, estimate.accepted,
        estimate.cost_ratio, estimate.verify_ratio, candidates, estimate.note,
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
    passed: Callable[[], object] = lambda: None,
) -> dict[str, Timed]:  # fmt: skip
    """Times whole decodes of each batch in all ways, one after the other, so that a busy machine
    slows all of them alike. Each runs once before.

    Args:
      until: of ``time.monotonic``, when to stop, which leaves batches or repetitions out; the
        first batch is timed in any case.
      limit: tokens that a row may emit.
      starts: whether decodes of one block are timed too.
      passed: called after each batch.
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
        for place, batch in enumerate(batches):
            if turn and time.monotonic() > until:
                break
            order = list(seconds) if turn % 2 == 0 else list(reversed(seconds))
            for name, each in order:
                began = time.perf_counter()
                result = runners[name].run(batch, limit=each)
                took = time.perf_counter() - began
                if repetition == 0:
                    seconds[name, each].append([])
                    if each == limit:
                        results[name].append(result)
                seconds[name, each][place].append(took)
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

    def __init__(self, name: str, seconds: float):
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
        return ready

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
            return time.monotonic() - began

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
        if self._left(1.0) <= 0:
            return {}
        with self._show(what, _REPETITIONS * len(batches), "batches") as progress:
            return time_in_turns(
                ready, batches, until=self._began + share * self._seconds, limit=limit,
                starts=starts, passed=progress.add,
            )  # fmt: skip


def _path(directory: Path, key: str) -> Path:
    return directory / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def remembered(directory: Path, key: str) -> Choice | None:
    """The choice made before for ``key``; None if there is none, or none that can be read."""

    def tree(found: Any) -> Tree | None:
        return None if found is None else Tree(**found)

    try:
        kept = read_object(_path(directory, key))
        if kept["key"] != key:
            return None
        found = dict(kept["choice"])
        found["tree"] = tree(found["tree"])
        found["accepted"] = tuple(found["accepted"])
        found["verify_ratio"] = {int(size): v for size, v in found["verify_ratio"].items()}
        found["candidates"] = tuple(
            Candidate(**{**each, "tree": tree(each["tree"])}) for each in found["candidates"]
        )
        return Choice(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(directory: Path, key: str, choice: Choice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        write_json(_path(directory, key), {"key": key, "choice": dataclasses.asdict(choice)})
