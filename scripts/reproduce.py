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

from specdec.runs import cli, command_line

_SIZES = "Only print the sizes of each row's models: no weights or data are read."
_DRY_RUN = flags.DEFINE_bool("dry_run", False, _SIZES)


def _run(given: command_line.Given) -> int:
    command_line.use_compilation_cache()
    return cli.reproduce(given, ROOT, dry_run=_DRY_RUN.value)


if __name__ == "__main__":
    where = "Where to write and to continue; out/reproduce_<configuration> by default."
    command_line.run(_run, where)
