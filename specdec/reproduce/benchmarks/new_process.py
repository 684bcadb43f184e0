"""A new process that starts a system and decodes, as its command ``python -m``.

It reads (system's name, workload, lengths, options) from stdin as a pickle, and writes a line of
JSON to stdout when it has come to each of ``STEPS``. Who started it has the clock.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec.reproduce.benchmarks import worker
from specdec.reproduce.benchmarks.systems import SYSTEMS

if TYPE_CHECKING:
    from specdec.reproduce.benchmarks.contract import Workload

# The library is imported; its model is loaded; it emitted one token of the first batch; it decoded
# every batch; and it did so once more.
STEPS = ("imported", "loaded", "first", "all", "again")


def start(
    name: str, workload: Workload, lengths: Sequence[int] | None, options: Mapping[str, Any],
    tell: Callable[..., None],
) -> None:  # fmt: skip
    """Takes the steps, and tells each; "absent" says why a system cannot be loaded."""
    entry = SYSTEMS[name]
    try:
        for package in entry.needs:
            importlib.import_module(package)
        module = importlib.import_module(f"specdec.reproduce.benchmarks.systems.{entry.module}")
        tell("imported")
        system = module.System(workload, entry.method, options)
        tell("loaded", versions=system.versions)
    except ImportError as error:
        tell("absent", why=str(error))
        return

    def decode(rows: Sequence[int]) -> list[list[int]]:
        return system.decode(rows, lengths and [lengths[row] for row in rows])

    first, *_ = batches = workload.batches()
    system.decode(first, [1] * len(first))
    tell("first")
    tell("all", tokens=[tokens for rows in batches for tokens in decode(rows)])
    for rows in batches:
        decode(rows)
    tell("again")


def main() -> None:
    """Runs what stdin asks for; an error is reported, too."""
    with os.fdopen(os.dup(1), "w") as steps:

        def tell(step: str, **more: Any) -> None:
            print(json.dumps({"step": step, **more}), file=steps, flush=True)

        name, workload, lengths, options = pickle.load(sys.stdin.buffer)
        worker.begin(options["threads"])
        try:
            start(name, workload, lengths, options, tell)
        except Exception as error:
            tell("failed", why=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
