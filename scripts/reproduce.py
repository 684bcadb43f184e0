"""Regenerates the paper's tables and figures with the models at hand.

    python scripts/reproduce.py --gin_file=configs/reproduce/small.gin \\
        [--output_dir=DIR] [--dry_run]

Run the same command again to continue a run that was stopped.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags

from specdec.runs import command_line
from specdec.runs.reproduce_cli import main

_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only print the sizes of each row's models: no weights or data are read."
)


def _run(given: command_line.Given) -> int:
    command_line.use_compilation_cache()
    return main(
        given.gin_files, given.bindings, directory=given.directory("reproduce"), root=ROOT,
        command=given.command, dry_run=_DRY_RUN.value,
    )  # fmt: skip


if __name__ == "__main__":
    command_line.run(
        _run, "Where to write and to continue; out/reproduce_<configuration> by default."
    )
