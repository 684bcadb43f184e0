"""Times specdec beside other systems on the same weights, inputs and output lengths.

    python scripts/benchmark.py --gin_file=configs/benchmarks/quickstart.gin \
        [--output_dir=DIR] [--t5x_path=CHECKOUT] [--gin.NAME=value ...]

Needs the extra "bench" for the other systems (pip install -e ".[bench]"); one that is not installed
is listed as absent.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags

from specdec.runs import command_line
from specdec.runs.benchmark import main

_T5X_PATH = flags.DEFINE_string("t5x_path", None, "A checkout of github.com/google-research/t5x.")


if __name__ == "__main__":
    where = "Where to write; out/benchmark_<configuration> by default."
    command_line.run(lambda given: main(given, ROOT, _T5X_PATH.value), where)
