"""Trains what a gin file describes: a vocabulary, a target or a draft.

    python scripts/train.py --gin_file=configs/training/quickstart_target.gin \
        --output_dir=runs/target --gin.DATA_DIR="'data/ende_tatoeba'"
"""

from __future__ import annotations

import sys

from absl import app, flags, logging

from specdec.runs.train import main

_GIN_FILES = flags.DEFINE_multi_string("gin_file", None, "Gin configuration; may be repeated.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory of the run; resumed if it exists.")
flags.mark_flags_as_required(["gin_file", "output_dir"])


def _run(argv: list[str]) -> None:
    del argv
    bindings = [argument.removeprefix("--gin.") for argument in _BINDINGS]
    logging.set_verbosity(logging.INFO)
    main(_GIN_FILES.value, bindings, _OUTPUT_DIR.value)


if __name__ == "__main__":
    _BINDINGS = [argument for argument in sys.argv if argument.startswith("--gin.")]
    app.run(_run, [argument for argument in sys.argv if argument not in _BINDINGS])
