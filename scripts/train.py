"""Trains what a gin file describes: a vocabulary, a target or a draft.

    python scripts/train.py --gin_file=configs/training/quickstart_target.gin \
        --output_dir=runs/target --gin.DATA_DIR="'data/ende_tatoeba'" \
        --gin.VOCABULARY="'runs/vocabulary'"

Run the same command again to continue a run that was stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import app, flags, logging

from specdec.runs.compilation_cache import use_compilation_cache
from specdec.runs.gin_files import split_bindings
from specdec.runs.train import main

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", None, "Gin configuration; may be repeated.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Directory of the run; resumed if it exists.", required=True
)


def _run(argv: list[str]) -> None:
    del argv
    use_compilation_cache()
    try:
        main(_GIN_FILES.value, _BINDINGS, _OUTPUT_DIR.value, ROOT)
    except (OSError, ValueError, FloatingPointError) as error:
        logging.debug("Traceback:", exc_info=True)  # With --verbosity=1.
        sys.exit(f"error: {str(error).strip().splitlines()[0]}")  # Gin adds its call stack.


if __name__ == "__main__":
    _BINDINGS, _ARGUMENTS = split_bindings(sys.argv)
    app.run(_run, _ARGUMENTS)
