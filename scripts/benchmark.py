"""Times specdec beside other systems on the same weights, inputs and output lengths.

    python scripts/benchmark.py --gin_file=configs/benchmarks/quickstart.gin \
        [--output_dir=DIR] [--t5x_path=CHECKOUT] [--gin.NAME=value ...]

Needs the extra "bench" for the other systems (pip install -e ".[bench]"); one that is not installed
is listed as absent.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import app, flags

from specdec.runs.benchmark import main
from specdec.runs.gin_files import split_bindings

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", None, "Gin configuration; may be repeated.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Where to write; out/benchmark_<configuration> by default."
)
_T5X_PATH = flags.DEFINE_string("t5x_path", None, "A checkout of github.com/google-research/t5x.")


def _run(argv: list[str]) -> int:
    if len(argv) > 1:
        print(f"error: unknown argument {argv[1]!r}.", file=sys.stderr)
        return 2
    name = Path(_GIN_FILES.value[-1]).stem
    return main(
        _GIN_FILES.value, _BINDINGS, _OUTPUT_DIR.value or Path("out") / f"benchmark_{name}", ROOT,
        command=shlex.join(["python", *sys.argv]), t5x_path=_T5X_PATH.value,
    )  # fmt: skip


if __name__ == "__main__":
    _BINDINGS, _ARGUMENTS = split_bindings(sys.argv)
    app.run(_run, _ARGUMENTS)
