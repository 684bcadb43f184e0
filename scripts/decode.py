"""Decodes a task with a pair of models, compares with plain decoding, and measures the speedup.

    python scripts/decode.py --gin_file=configs/experiments/quickstart_ende.gin \
        [--gin.GAMMA=4 ...] [--output_dir=DIR] [--text "..." | --input_file=FILE] [--dry_run]

The same --output_dir continues a run that was stopped. Several processes share the work when each
is started so, with --distributed, where JAX finds the others (TPU pods, SLURM, Open MPI), or with
--coordinator_address=HOST:PORT --num_processes=N --process_id=I.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags

from specdec.runs import cli, command_line
from specdec.runs.processes import ALONE, TIMEOUT_SECONDS, join

_TEXTS = flags.DEFINE_multi_string("text", [], "A text to decode instead; may be repeated.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "A file to decode instead, a text a line.")
_SIZES = "Only print parameters, bytes and the expected speedup; load nothing."
_DRY_RUN = flags.DEFINE_bool("dry_run", False, _SIZES)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "One of several processes, detected by JAX.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "HOST:PORT of process 0, where JAX does not detect it."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many there are.", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "This one's number.", lower_bound=0)
_PROCESS_TIMEOUT = flags.DEFINE_integer(
    "process_timeout", TIMEOUT_SECONDS, "Seconds to wait for a process.", lower_bound=1
)


def _run(given: command_line.Given) -> int:
    command_line.use_compilation_cache()
    where = (_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    alone = not _DISTRIBUTED.value and where == (None, None, None)
    try:
        processes = ALONE if alone else join(*where, _PROCESS_TIMEOUT.value)
    except ValueError as error:
        return command_line.told(error)
    return cli.decode(
        given, ROOT, texts=_TEXTS.value, input_file=_INPUT_FILE.value, dry_run=_DRY_RUN.value,
        processes=processes,
    )  # fmt: skip


if __name__ == "__main__":
    command_line.run(_run, "Where to write; out/<experiment>-<time> by default.")
