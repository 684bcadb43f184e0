"""Trains what a gin file describes: a vocabulary, a target or a draft.

    python scripts/train.py --gin_file=configs/training/quickstart_target.gin \
        --output_dir=runs/target --gin.DATA_DIR="'data/ende_tatoeba'" \
        --gin.VOCABULARY="'runs/vocabulary'"

Run the same command again to continue a run that was stopped.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import logging

from specdec.runs import command_line
from specdec.runs.train import main


def _run(given: command_line.Given) -> int:
    command_line.use_compilation_cache()
    try:
        main(given, ROOT)
    except (OSError, ValueError, FloatingPointError) as error:
        logging.debug("Traceback:", exc_info=True)  # With --verbosity=1.
        sys.exit(f"error: {str(error).strip().splitlines()[0]}")  # Gin adds its call stack.
    return 0


if __name__ == "__main__":
    command_line.run(_run, "Directory of the run; resumed if it exists.", required=True)
