"""One system in a process of its own: it is loaded once, and decodes the workload when asked."""

from __future__ import annotations

import dataclasses
import importlib
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.systems import SYSTEMS

_loaded: dict[str, Any] = {}  # This process's system, workload, and bytes of imported libraries.


def begin(threads: int) -> None:
    """Prepares the process, before any library makes its threads."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    os.dup2(2, 1)  # Whatever a library prints goes to stderr.
    if hasattr(os, "sched_setaffinity"):  # JAX counts the cores that a process may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def load(name: str, workload: Workload, options: Mapping[str, Any]) -> dict[str, Any]:
    """Loads a system; "absent" says why it cannot be."""
    entry = SYSTEMS[name]
    workload = dataclasses.replace(workload, batch_size=entry.at_once or workload.batch_size)
    try:
        for package in (*entry.needs, *entry.converts):
            importlib.import_module(package)
        module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
        imported = _peak_memory()
        start = time.perf_counter()
        system = module.System(workload, entry.method, options)
        load_seconds = time.perf_counter() - start
    except ImportError as error:
        return {"absent": str(error)}
    _loaded.update(system=system, workload=workload, imported=imported)
    return {"load_seconds": load_seconds, "versions": system.versions}


def decode(lengths: Sequence[int] | None, first_token: bool) -> dict[str, Any]:
    """Decodes every batch once.

    Args:
      lengths: tokens for each row; None lets rows end by themselves.
      first_token: whether to stop after one token a row.
    """
    workload: Workload = _loaded["workload"]
    tokens, seconds = [], 0.0
    if first_token:
        lengths = [1] * len(workload.inputs)
    for rows in workload.batches():
        wanted = None if lengths is None else [lengths[row] for row in rows]
        start = time.perf_counter()
        tokens += _loaded["system"].decode(rows, wanted)
        seconds += time.perf_counter() - start
    memory = _device_peak() or _peak_memory() - _loaded["imported"]
    return {"seconds": seconds, "tokens": tokens, "memory_bytes": memory}


def _peak_memory() -> int:
    """Largest resident size of this program so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # Not Linux. There getrusage counts what ran before this program was started.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _device_peak() -> int | None:
    """Largest memory in use on an accelerator, in bytes; None on CPU."""
    if "jax" not in sys.modules:
        return None
    import jax

    statistics = jax.local_devices()[0].memory_stats()
    return statistics and statistics.get("peak_bytes_in_use")
