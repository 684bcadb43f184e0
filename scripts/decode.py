"""Decodes a task with a pair of models, compares with plain decoding, and measures the speedup.

    python scripts/decode.py --gin_file=configs/experiments/quickstart_ende.gin \
        [--gin.GAMMA=4 ...] [--output_dir=DIR] [--text "..." | --input_file=FILE] [--dry_run]

The same --output_dir continues a run that was stopped.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import app, flags

from specdec.runs.compilation_cache import use_compilation_cache
from specdec.runs.decode_cli import main
from specdec.runs.gin_files import split_bindings

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", None, "Gin configuration; may be repeated.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Where to write; out/<experiment>-<time> by default."
)
_TEXTS = flags.DEFINE_multi_string("text", [], "A text to decode instead; may be repeated.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "A file to decode instead, a text a line.")
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only print parameters, bytes and the expected speedup; load nothing."
)


def _run(argv: list[str]) -> int:
    if len(argv) > 1:
        print(f"error: unknown argument {argv[1]!r}.", file=sys.stderr)
        return 2
    use_compilation_cache()
    return main(
        _GIN_FILES.value, _BINDINGS, root=ROOT, command=shlex.join(["python", *sys.argv]),
        output_dir=_OUTPUT_DIR.value, texts=_TEXTS.value, input_file=_INPUT_FILE.value,
        dry_run=_DRY_RUN.value,
    )  # fmt: skip


if __name__ == "__main__":
    _BINDINGS, _ARGUMENTS = split_bindings(sys.argv)
    app.run(_run, _ARGUMENTS)
