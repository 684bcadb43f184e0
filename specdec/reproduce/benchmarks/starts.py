"""The cold start: how long new processes take, and from how many tokens on specdec is ahead."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import specdec
from specdec.core.progress import Progress, say
from specdec.measure.timing import Spread
from specdec.reproduce.benchmarks import new_process
from specdec.reproduce.benchmarks.contract import Workload, WorkloadError
from specdec.reproduce.benchmarks.harness import REST_SECONDS, check_systems, check_tokens
from specdec.reproduce.benchmarks.systems import SYSTEMS

# Settings with which JAX would keep programs elsewhere than where SPECDEC_CACHE says, or not.
_OF_PROGRAMS = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "SPECDEC_KEEP_PROGRAMS",
)


@dataclasses.dataclass(frozen=True)
class Start:
    """Times of a system in new processes, one a repetition; an absent one has only its name."""

    system: str
    kept: str | None  # What earlier processes left for it, or "nothing"; None if they never do.
    absent: str | None = None  # Why it did not run; None if it did.
    import_seconds: tuple[float, ...] = ()  # From the process's start on.
    load_seconds: tuple[float, ...] = ()
    first_token_seconds: tuple[float, ...] = ()  # Of the first row, behind loading; compiles.
    all_seconds: tuple[float, ...] = ()  # From the process's start until all rows are decoded.
    again_seconds: tuple[float, ...] = ()  # All rows once more, in the same process.
    num_tokens: int = 0  # Of all rows.
    same_rows: int = 0  # With the reference's tokens but the last, which need not be EOS.
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The system, with what was kept for it."""
        return f"{self.system} ({self.kept} kept)" if self.kept else self.system

    @property
    def ready(self) -> float:
        """Seconds from the process's start to the first token, median."""
        parts = zip(self.import_seconds, self.load_seconds, self.first_token_seconds, strict=True)
        return statistics.median(map(sum, parts))

    @property
    def token_seconds(self) -> float:
        """Seconds of a further token once all is compiled, median."""
        return statistics.median(self.again_seconds) / self.num_tokens


def ahead(ours: Start, theirs: Start) -> tuple[int | None, int | None]:
    """The first and the last number of tokens with which ``ours`` is done before ``theirs``.

    None as the first: never. None as the last: for good.
    """
    later, faster = ours.ready - theirs.ready, theirs.token_seconds - ours.token_seconds
    if later < 0:
        return 1, None if faster >= 0 else math.ceil(later / faster)
    return (1 + math.floor(later / faster) + 1, None) if faster > 0 else (None, None)


def measure(
    workload: Workload, systems: Sequence[str], repetitions: int, options: Mapping[str, Any]
) -> list[Start]:
    """Starts each system in a new process in each repetition, one process at a time.

    A system that keeps something on disk for later processes is measured without and with it. All
    run once before, uncounted: files are then in memory, and what is to be kept is.

    Args:
      systems, options: see :func:`specdec.reproduce.benchmarks.harness.measure`, also for errors.
    """
    check_systems(workload, systems)
    if repetitions < 1:
        raise WorkloadError(f"There must be at least one repetition, got {repetitions}.")
    with tempfile.TemporaryDirectory() as root:
        kept = {name: Path(root) / str(index) for index, name in enumerate(systems)}
        lengths: Sequence[int] | None = workload.lengths
        reference: list[list[int]] = []
        befores: dict[str, dict[str, Any]] = {}
        for name in systems:
            say(f"First start of {name}")
            befores[name] = before = _run(name, workload, lengths, options, kept[name])
            if "absent" in before:
                continue
            tokens = before["all"]["tokens"]
            reference = reference or tokens
            check_tokens(name, workload, tokens, reference)
            lengths = [len(row) for row in reference]
        ways = [
            (name, what) for name in systems if "absent" not in befores[name]
            for what in (("nothing", SYSTEMS[name].keeps) if SYSTEMS[name].keeps else (None,))
        ]  # fmt: skip
        found: dict[tuple[str, str | None], list[dict[str, Any]]] = {way: [] for way in ways}
        with Progress(repetitions * len(ways), "starts") as progress:
            for number in range(repetitions):
                for name, what in ways if number % 2 == 0 else reversed(ways):
                    progress.set_description(f"{name}, repetition {number + 1}")
                    with tempfile.TemporaryDirectory(dir=root) as empty:
                        folder = Path(empty) if what == "nothing" else kept[name]
                        found[name, what].append(_run(name, workload, lengths, options, folder))
                    progress.add()
        absent = [
            Start(name, None, steps["absent"]["why"])
            for name, steps in befores.items() if "absent" in steps
        ]  # fmt: skip
        return [_start(*way, runs, reference) for way, runs in found.items()] + absent


def _start(
    name: str,
    kept: str | None,
    runs: Sequence[Mapping[str, Any]],
    reference: Sequence[Sequence[int]],
) -> Start:
    def between(begin: str | None, end: str) -> tuple[float, ...]:
        return tuple(run[end]["at"] - (run[begin]["at"] if begin else 0.0) for run in runs)

    tokens = runs[0]["all"]["tokens"]
    return Start(
        name, kept, None, between(None, "imported"), between("imported", "loaded"),
        between("loaded", "first"), between(None, "all"), between("all", "again"),
        sum(map(len, tokens)),
        sum(a[:-1] == b[:-1] for a, b in zip(tokens, reference, strict=True)),
        runs[0]["loaded"]["versions"],
    )  # fmt: skip


def _environment(kept: Path) -> dict[str, str]:
    """Variables of a process that imports this specdec and keeps programs in a folder."""
    same = {key: value for key, value in os.environ.items() if key not in _OF_PROGRAMS}
    home = str(Path(specdec.__file__).parents[1])
    where = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return same | {"SPECDEC_CACHE": str(kept), "PYTHONPATH": where}


def _run(
    name: str, workload: Workload, lengths: Sequence[int] | None, options: Mapping[str, Any],
    kept: Path,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Reports of a new process, one a step, with "at" how many seconds.

    Args:
      kept: where it finds what an earlier process left, and leaves it.
    """
    order = pickle.dumps((name, workload, lengths, {**options, "kept": str(kept)}))
    steps: dict[str, dict[str, Any]] = {}
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", new_process.__name__], env=_environment(kept),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        with process.stdin as given:
            given.write(order)
        for line in process.stdout:
            at = time.perf_counter() - begun
            answer = json.loads(line)
            steps[answer["step"]] = {"at": at, **answer}
    if "failed" in steps:
        raise RuntimeError(f"{name}: {steps['failed']['why']}")
    if not {"absent", new_process.STEPS[-1]} & steps.keys():
        raise RuntimeError(f"{name}: its process ended")
    time.sleep(REST_SECONDS)
    return steps


def numbers(starts: Sequence[Start]) -> list[dict[str, Any]]:
    """The systems' part of ``results.json``, with which peers specdec's own are ahead of when."""
    peers = [s for s in starts if not SYSTEMS[s.system].own and s.absent is None]

    def spreads(s: Start) -> Iterator[tuple[str, dict[str, float]]]:
        for field in ("import", "load", "first_token", "all"):
            yield field, dataclasses.asdict(Spread.of(getattr(s, f"{field}_seconds")))

    def system(s: Start) -> dict[str, Any]:
        if s.absent is not None:
            return {"system": s.system, "absent": s.absent}
        return dataclasses.asdict(s) | dict(spreads(s)) | {
            "name": s.name, "ready": s.ready, "tokens_per_second": 1 / s.token_seconds,
            "ahead": {p.name: ahead(s, p) for p in peers} if SYSTEMS[s.system].own else {},
        }  # fmt: skip

    return [system(s) for s in starts]


_CELLS = (
    ("system", "{system}"), ("kept from before", "{left}"),
    ("import, s", "{import[median]:.2f}"), ("load, s", "{load[median]:.2f}"),
    ("first token, s", "{first_token[median]:.2f}"), ("tokens/s", "{tokens_per_second:.0f}"),
    ("all rows, s", "{all[median]:.2f}"), ("(range)", "{all[low]:.2f} to {all[high]:.2f}"),
    ("same rows", "{same}"),
)  # fmt: skip


def _ahead(found: Sequence[int | None]) -> str:
    first, last = found
    if first is None:
        return "never"
    begin = "at once" if first == 1 else f"from {first:,}"
    return begin if last is None else f"{begin}, up to {last:,}"


def tables(result: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Headings and rows of a workload's two tables: times, and tokens from which on it is ahead."""
    times, tokens = [], []
    present = [s for s in result["systems"] if s.get("absent") is None]
    peers = [s["name"] for s in present if not s["ahead"]]
    for s in present:
        same = f"{s['same_rows']}/{result['num_rows']}"
        left = s["kept"] or "–"
        times.append([form.format(**s, same=same, left=left) for _, form in _CELLS])
        if s["ahead"]:
            tokens.append([s["name"], *(_ahead(s["ahead"][name]) for name in peers)])
    for s in result["systems"]:
        if s.get("absent") is not None:
            times.append([s["system"], f"absent: {s['absent']}", *[""] * (len(_CELLS) - 2)])
    found = [([title for title, _ in _CELLS], times)]
    if peers:
        found.append((["tokens with which it is ahead of", *peers], tokens))
    return found
