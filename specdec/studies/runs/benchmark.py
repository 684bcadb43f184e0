"""Benchmarks bound by gin; ``scripts/benchmark.py`` is their command line."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from specdec.core import files
from specdec.core.machine import num_cores
from specdec.core.progress import Progress, say
from specdec.decoding.batches import make_batches
from specdec.measure import results
from specdec.runs import gin_files
from specdec.runs.command_line import Given, told
from specdec.studies.benchmarks import harness, report
from specdec.studies.benchmarks.systems import SYSTEMS
from specdec.studies.benchmarks.systems.specdec_loop import VARIANTS, Variant, decoder_of, pair_of
from specdec.studies.benchmarks.workload import Workload, exported
from specdec.studies.measure import breakdown

RESULTS, CONFIG = "results.json", "operative_config.gin"


def run(
    directory: Path, t5x_path: str | None, command: str, *,
    workloads: Sequence[Callable[[], list[Workload]]], systems: Sequence[str], repetitions: int,
    threads: int | None = None, breakdown_repetitions: int = 5,
) -> dict[str, Any]:  # fmt: skip
    """Measures every system on every workload and writes ``results.json`` after each.

    Args:
      directory: where to write; checkpoints of random weights are made in it and removed after.
      t5x_path: a checkout of T5X, for the system of that name.
      systems, repetitions: see ``harness.measure``, also for what it raises.
      threads: cores each system may use; all there are if None.
      breakdown_repetitions: of the parts of specdec's speculative decoding; 0 leaves them out.
    """
    cores = num_cores()
    if not 1 <= (threads := threads or cores) <= cores:
        raise ValueError(f"threads must be in [1, {cores}], got {threads}.")
    options = {"threads": threads, "t5x_path": t5x_path}
    needs_files = any(not SYSTEMS[name].drawn for name in systems if name in SYSTEMS)
    all_workloads = [workload for make in workloads for workload in make()]
    directory.mkdir(parents=True, exist_ok=True)
    source = results.provenance()  # Before anything new is in the checkout.
    config = gin.operative_config_str()
    files.write_text(directory / CONFIG, config)
    content = {
        "threads": threads, "repetitions": repetitions, "workloads": [],
        **source, "gin": config, "command": command,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".checkpoints-") as checkpoints,
        Progress(len(all_workloads), "workloads") as progress,
    ):
        for workload in all_workloads:
            progress.begin(f"{workload.label}, {threads} threads")
            if needs_files:
                where, seed, stored = Path(checkpoints), workload.seed, workload.stored
                workload = dataclasses.replace(
                    workload,
                    target=exported(workload.target, where, seed, stored),
                    draft=exported(workload.draft, where, seed + 1, stored),
                )
            measurements = harness.measure(workload, systems, repetitions, options)
            parts = None
            guessing = [name for name in systems if SYSTEMS[name].guesses]
            if breakdown_repetitions and guessing:
                say(f"Breaking a block of {guessing[0]} down, {breakdown_repetitions} repetitions")
                variant = VARIANTS[SYSTEMS[guessing[0]].method]
                parts = _break_down(workload, variant, breakdown_repetitions)
            content["workloads"].append(report.numbers(workload, measurements, parts))
            files.write_json(directory / RESULTS, content)
            say(report.text(content["workloads"][-1]) + "\n", result=True)
            progress.add()
    return content


def _break_down(workload: Workload, variant: Variant, repetitions: int) -> breakdown.Breakdown:
    pair = pair_of(workload, variant)
    ids = [np.asarray(row) for row in workload.inputs]
    whole = None
    if workload.stop_below:
        never_stops = dataclasses.replace(workload, stop_below=0.0)
        whole = decoder_of(never_stops, pair, "speculative")
    return breakdown.measure(
        decoder_of(workload, pair, "autoregressive"),
        decoder_of(workload, pair, "speculative"),
        list(make_batches(ids, workload.batch_size, pair.target.model)), repetitions=repetitions,
        forced_alpha=workload.forced_alpha, parts_of=whole,
    )  # fmt: skip


def main(given: Given, root: Path, t5x_path: str | None) -> int:
    """Runs a configuration; returns the exit code: 0, or 2 for a mistake told on stderr."""
    directory = given.directory("benchmark")
    try:
        files.check_writable(directory)
        gin_files.parse(given.gin_files, given.bindings, root)
        gin.get_configurable(run)(directory, t5x_path, given.command)
    except (ValueError, OSError, RuntimeError) as error:
        return told(error)
    print(f"Written to {directory}: {RESULTS}, {CONFIG}")
    return 0
