"""Converts checkpoints between T5X, Hugging Face and Orbax (a training run), and verifies them.

python scripts/convert.py --source=SOURCE --output_dir=DIR --format=huggingface|t5x|orbax

SOURCE is a T5X checkpoint (gs://bucket/path too), a Hugging Face T5's directory or hub id, or a run
of scripts/train.py. The result is opened again and must give the source's logits.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import app, flags, logging

from specdec.runs.convert import FORMATS, convert

_SOURCE = flags.DEFINE_string("source", None, "A checkpoint or a training run.", required=True)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "A new directory.", required=True)
_FORMAT = flags.DEFINE_enum("format", None, FORMATS, "What to write.", required=True)
_DTYPES = ["float32", "float16", "bfloat16"]
_DTYPE = flags.DEFINE_enum("dtype", "float32", _DTYPES, "How weights are stored.")
_STEP = flags.DEFINE_integer("step", None, "Which of the source's steps; the latest if not given.")


def _run(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)  # Orbax narrates every step it takes.
    try:
        difference = convert(
            _SOURCE.value, _OUTPUT_DIR.value, _FORMAT.value, _DTYPE.value, _STEP.value
        )
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"Wrote {_OUTPUT_DIR.value}; logits differ by at most {difference:g}.")


if __name__ == "__main__":
    app.run(_run)
