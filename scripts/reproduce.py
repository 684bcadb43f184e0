"""Regenerates the paper's tables and figures with the models at hand.

    python scripts/reproduce.py --gin_file=configs/reproduce/small.gin \\
        [--output_dir=DIR] [--dry_run]

Run the same command again to continue a run that was stopped.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import app, flags

from specdec.runs.compilation_cache import use_compilation_cache
from specdec.runs.gin_files import split_bindings
from specdec.runs.reproduce_cli import main

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", None, "Gin configuration; may be repeated.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Where to write and to continue; out/reproduce_<configuration> by default."
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only print the sizes of each row's models: no weights or data are read."
)


def _run(argv: list[str]) -> int:
    if len(argv) > 1:
        print(f"error: unknown argument {argv[1]!r}.", file=sys.stderr)
        return 2
    use_compilation_cache()
    name = Path(_GIN_FILES.value[-1]).stem
    directory = _OUTPUT_DIR.value or f"out/reproduce_{name}"
    return main(
        _GIN_FILES.value, _BINDINGS, directory=Path(directory), root=ROOT,
        command=shlex.join(["python", *sys.argv]), dry_run=_DRY_RUN.value,
    )  # fmt: skip


if __name__ == "__main__":
    _BINDINGS, _ARGUMENTS = split_bindings(sys.argv)
    app.run(_run, _ARGUMENTS)
