"""One system in a process of its own: ``python -m ....benchmarks.worker NAME THREADS``.

Each object pickled to stdin is answered by one on stdout. The first has the "workload" and the
"options"; each further one asks to decode every batch once, with "lengths" (tokens for each row;
None to let rows end by themselves) and "first_token" (whether to stop after one token a row). An
answer with "error" or "absent" is the last.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.reproduce.benchmarks.systems import SYSTEMS


def main(name: str, threads: int) -> None:
    """Answers until stdin ends."""
    file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Whatever a library prints goes to stderr.
    if hasattr(os, "sched_setaffinity"):  # JAX counts the cores that a process may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])

    def tell(answer: dict[str, Any]) -> None:
        pickle.dump(answer, file)
        file.flush()

    try:
        for answer in _answers(name, sys.stdin.buffer):
            tell(answer)
    except Exception as error:  # The parent has no other way to learn of it.
        tell({"error": f"{type(error).__name__}: {error}"})
        raise


def _answers(name: str, questions: Any) -> Iterator[dict[str, Any]]:
    entry = SYSTEMS[name]
    try:
        for package in entry.needs:
            importlib.import_module(package)
        module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
        setup = pickle.load(questions)
        workload, imported = setup["workload"], _peak_memory()
        start = time.perf_counter()
        system = module.System(workload, entry.method, setup["options"])
        load_seconds = time.perf_counter() - start
    except ImportError as error:
        yield {"absent": str(error)}
        return
    yield {"load_seconds": load_seconds, "versions": system.versions}
    while questions.peek():
        question = pickle.load(questions)
        lengths, tokens, seconds = question["lengths"], [], 0.0
        if question["first_token"]:
            lengths = [1] * len(workload.inputs)
        for rows in workload.batches():
            wanted = None if lengths is None else [lengths[row] for row in rows]
            start = time.perf_counter()
            tokens += system.decode(rows, wanted)
            seconds += time.perf_counter() - start
        memory = _device_peak() or _peak_memory() - imported
        yield {"seconds": seconds, "tokens": tokens, "memory_bytes": memory}


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
    main(sys.argv[1], int(sys.argv[2]))
