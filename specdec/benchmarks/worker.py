"""One system in a process of its own: ``python -m specdec.benchmarks.worker``.

Speaks JSON lines. The first line of stdin says what to load; each further line asks for one
repetition. Every line of stdout is an answer; an answer with "error" or "absent" is the last.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever a library prints goes to stderr.

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    setup = json.loads(sys.stdin.readline())
    try:
        try:
            worker = Worker(setup)
        except ImportError as error:
            answer({"absent": str(error)})
            return
        answer(worker.ready())
        for line in sys.stdin:
            answer(worker.repetition(**json.loads(line)))
    except Exception as error:  # The parent has no other way to learn of it.
        answer({"error": f"{type(error).__name__}: {error}"})
        raise


class Worker:
    """A loaded system and what it was asked to do.

    Args:
      setup: "workload" (JSON), "module", "method", "needs", "options" with "threads".
    """

    def __init__(self, setup: dict[str, Any]):
        _limit_cores(setup["options"]["threads"])
        for package in setup["needs"]:
            importlib.import_module(package)
        module = importlib.import_module(f"specdec.benchmarks.systems.{setup['module']}")
        from specdec.benchmarks.workload import Workload

        self._workload = Workload.from_json(setup["workload"])
        self._lengths = self._workload.lengths
        self._imported = _peak_memory()
        start = time.perf_counter()
        self._system = module.load(self._workload, setup["method"], setup["options"])
        self._load_seconds = time.perf_counter() - start

    def ready(self) -> dict[str, Any]:
        """What is known after loading."""
        return {"load_seconds": self._load_seconds, "versions": dict(self._system.versions)}

    def repetition(self, lengths: list[int] | None, first_token: bool = False) -> dict[str, Any]:
        """Decodes every batch once.

        Args:
          lengths: tokens for each row; None to let rows end by themselves.
          first_token: stop after one token a row.
        """
        tokens, seconds = [], []
        for rows in self._workload.batches():
            wanted = None if lengths is None else [lengths[row] for row in rows]
            start = time.perf_counter()
            tokens += self._system.decode(rows, [1] * len(rows) if first_token else wanted)
            seconds.append(time.perf_counter() - start)
        return {
            "seconds": sum(seconds),
            "tokens": tokens,
            "memory": {"imported": self._imported, "peak": _peak_memory()},
            "device_peak": _device_peak(),
        }


def _limit_cores(count: int) -> None:
    """Lets this process run on ``count`` cores, where the system can: JAX counts them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


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


if __name__ == "__main__":
    main()
