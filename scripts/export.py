"""Writes a training run's latest checkpoint as a Hugging Face T5 directory.

python scripts/export.py --run_dir=runs/target --output_dir=my_target [--dtype=float16]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dataclasses

from absl import app, flags, logging

from specdec.checkpoints import save_huggingface
from specdec.data.vocabulary import FILE_NAME
from specdec.training.checkpointing import load_params

_RUN_DIR = flags.DEFINE_string("run_dir", None, "A run of scripts/train.py.", required=True)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "A new directory.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "float16", "bfloat16"], "How weights are stored."
)


def _run(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)  # Orbax narrates every step it takes.
    try:
        config, params = load_params(_RUN_DIR.value)
        # What the weights are used in is the reader's choice, not the training run's.
        config = dataclasses.replace(config, dtype="float32")
        vocabulary = Path(_RUN_DIR.value) / FILE_NAME
        save_huggingface(_OUTPUT_DIR.value, config, params, vocabulary, _DTYPE.value)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"Wrote {_OUTPUT_DIR.value}")


if __name__ == "__main__":
    app.run(_run)
