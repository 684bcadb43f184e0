"""Benchmarks bound by gin; ``scripts/benchmark.py`` is their command line."""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from specdec.core import files
from specdec.core.machine import num_cores
from specdec.core.progress import say
from specdec.decoding.batches import make_batches
from specdec.measure import results, speed
from specdec.reproduce.benchmarks import harness, report, starts
from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.systems import SYSTEMS
from specdec.reproduce.benchmarks.systems.specdec_loop import VARIANTS, decoder_of, pair_of
from specdec.reproduce.benchmarks.workload import exported
from specdec.reproduce.pieces import Done, carry_out, kept, slug
from specdec.runs import gin_files
from specdec.runs.command_line import Given, report_error

RESULTS, CONFIG, WORKLOAD = "results.json", "operative_config.gin", "workload.json"


@dataclasses.dataclass(frozen=True)
class WorkloadPiece:
    """A workload and the systems that do it, as a piece; other fields are arguments of :func:`run`.

    Attributes:
      checkpoints: a folder for random weights that other systems read.
      source: versions, machine and commit, see :func:`specdec.measure.results.provenance`.
    """

    path: tuple[str, ...]
    workload: Workload
    systems: Sequence[str]
    repetitions: int
    options: Mapping[str, Any]
    speed_repetitions: int
    new_processes: bool
    checkpoints: Path
    source: Mapping[str, Any]

    def do(self, directory: Path) -> Done:
        """Measures every system, unless this commit and machine have done it there.

        A checkout with changes always measures: nothing shows whether it is the same.
        """
        same = {key: self.source[key] for key in ("versions", "device", "git_sha")}
        if str(same["git_sha"]).endswith("-dirty"):
            same["began"] = time.time()
        entries = [SYSTEMS[name] for name in self.systems if name in SYSTEMS]
        needs = {package for entry in entries for package in (*entry.needs, *entry.converts)}
        same["installed"] = sorted(filter(importlib.util.find_spec, needs))
        how = (
            self.systems, self.repetitions, self.speed_repetitions, self.new_processes,
            self.options,
        )  # fmt: skip
        settings = {"workload": repr(self.workload), "how": repr(how), **same}
        done = kept(directory / WORKLOAD, settings, self._made)
        return Done(done.numbers, done.measured)

    def _made(self) -> dict[str, Any]:
        workload, where = self.workload, self.checkpoints
        if any(not SYSTEMS[name].drawn for name in self.systems if name in SYSTEMS):
            first, second = (
                exported(weights, where, workload.seed + index, workload.stored)
                for index, weights in enumerate((workload.target, workload.draft))
            )
            workload = dataclasses.replace(workload, target=first, draft=second)
        how = self.systems, self.repetitions, self.options
        if self.new_processes:
            return report.start_numbers(workload, starts.measure(workload, *how))
        measurements = harness.measure(workload, *how)
        decoder = None
        guessing = [name for name in self.systems if SYSTEMS[name].guesses]
        if self.speed_repetitions and guessing:
            say(f"Timing the decoder of {guessing[0]}, {self.speed_repetitions} repetitions")
            decoder = _speed(workload, SYSTEMS[guessing[0]].method, self.speed_repetitions)
        return report.numbers(workload, measurements, decoder)


def run(
    directory: Path, t5x_path: str | None, command: str, *,
    workloads: Sequence[Callable[[], list[Workload]]], systems: Sequence[str], repetitions: int,
    threads: int | None = None, speed_repetitions: int = 5, new_processes: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Measures every system on every workload and writes ``results.json`` after each.

    Args:
      directory: where to write and to continue; checkpoints of random weights are made in it and
        removed after.
      t5x_path: a checkout of T5X, for the system of that name.
      systems, repetitions: see ``harness.measure``, also for what it raises.
      threads: cores each system may use; all there are if None.
      speed_repetitions: of c, v and specdec's decoder alone; 0 leaves them out.
      new_processes: whether each repetition is a cold start, see ``starts.measure``, and nothing
        else is measured.
    """
    cores = num_cores()
    if not 1 <= (threads := threads or cores) <= cores:
        raise ValueError(f"threads must be in [1, {cores}], got {threads}.")
    options = {"threads": threads, "t5x_path": t5x_path}
    directory.mkdir(parents=True, exist_ok=True)
    source = results.provenance()  # Before anything new is in the checkout.
    config = gin.operative_config_str()
    files.write_text(directory / CONFIG, config)
    content = {
        "threads": threads, "repetitions": repetitions, "workloads": [],
        **source, "gin": config, "command": command,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=directory, prefix=".checkpoints-") as checkpoints:
        pieces = [
            WorkloadPiece(
                ("workloads", f"{index}_{slug(workload.label)}"), workload, systems, repetitions,
                options, speed_repetitions, new_processes, Path(checkpoints), source,
            )
            for index, workload in enumerate(w for make in workloads for w in make())
        ]  # fmt: skip
        for _, found in carry_out(pieces, directory, "workloads"):
            content["workloads"].append(found)
            files.write_json(directory / RESULTS, content)
            say(report.text(found) + "\n", result=True)
    return content


def _speed(workload: Workload, method: str, repetitions: int) -> dict[str, float | None]:
    ways = VARIANTS["autoregressive"], VARIANTS[method]
    pair = pair_of(workload, ways[1])
    ids = [np.asarray(row) for row in workload.inputs]
    batches = list(make_batches(ids, workload.batch_size, pair.target.model))
    plain, fast = (decoder_of(workload, pair, way) for way in ways)
    return report.decoder_speed(speed.measure(plain, fast, batches, repetitions))


def main(given: Given, root: Path, t5x_path: str | None) -> int:
    """Runs a configuration; returns the exit code: 0, or 2 for a mistake, which stderr names."""
    directory = given.directory("benchmark")
    try:
        files.check_writable(directory)
        gin_files.parse(given.gin_files, given.bindings, root)
        gin.get_configurable(run)(directory, t5x_path, given.command)
    except (ValueError, OSError, RuntimeError) as error:
        return report_error(error)
    print(f"Written to {directory}: {RESULTS}, {CONFIG}")
    return 0
