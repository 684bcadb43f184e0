"""The commands ``specdec-decode``, ``-transcribe``, ``-train`` and ``-convert``; see scripts/, too.

Each imports its library only when it runs. So help is shown at once, and Ctrl-C gives one line at
any time.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib
import inspect
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags, logging

from specdec.core.progress import visible

_STOPPED = "Interrupted. Run the same command again to go on."
USAGE_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
_NO_CAPACITY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HELP = {"-h", "-help", "--help", "--helpshort", "-helpshort", "--helpfull", "-helpfull", "-?"}
_SIZES = (
    "Only print whether it fits, what it will read and what it would write, with COMPILE_FOR also "
    "what a chip's compiler says; load nothing."
)
_GIVEN = (FileNotFoundError, NotADirectoryError, PermissionError)
flags.disclaim_key_flags()  # They are listed as the command's own.


@dataclasses.dataclass(frozen=True)
class Given:
    """Arguments of the command line: ``bindings`` are the --gin.NAME=value, ``command`` is all."""

    gin_files: Sequence[str]
    bindings: Sequence[str]
    output_dir: str | None
    command: str

    def directory(self, kind: str) -> Path:
        """The output directory; out/<kind>_<configuration> by default."""
        return Path(self.output_dir or f"out/{kind}_{Path(self.gin_files[-1]).stem}")


def report_error(error: Exception | str) -> int:
    """Prints an error in one line on stderr, without gin's account of calls; the exit code.

    It is 2 for a mistake in the command, 1 if the run failed, for example on a full disk.
    """
    message = str(error).split("\n  In call to configurable")[0]
    if isinstance(error, OSError) and error.errno is not None:
        file = error.filename2 or error.filename
        message = f"{error.strerror}: {file}" if file else message
        if error.errno in _NO_CAPACITY:
            message += ". Make room, then run the same command again: it goes on where it stopped."
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
    given = isinstance(error, (str, ValueError, *_GIVEN))
    return USAGE_ERROR if given else FAILURE


def run(
    script: Callable[[Given], int], command: Callable[[], None], output_dir: str, *,
    required: bool = False, configured: bool = True,
) -> None:  # fmt: skip
    """Exits with what ``script`` returns, or as :func:`report_error`; with 130 on Ctrl-C.

    Args:
      command: the function whose docstring is the help.
      output_dir: help of --output_dir; it may be ``required``.
      configured: whether there are gin files.
    """
    gin_file, bindings, argv = None, [], sys.argv
    if configured:
        about = "Gin configuration; may be repeated."
        gin_file = flags.DEFINE_multi_string("gin_file", None, about, required=True)
        bindings = [a.removeprefix("--gin.") for a in sys.argv if a.startswith("--gin.")]
        argv = [a for a in sys.argv if not a.startswith("--gin.")]
    directory = flags.DEFINE_string("output_dir", None, output_dir, required=required)
    if _HELP & set(argv):
        own = flags.FLAGS.module_help(command.__module__)
        print(f"{inspect.getdoc(command)}\n{own}", file=sys.stdout)
        sys.exit(0)

    def parse(argv: list[str]) -> list[str]:
        try:
            rest = flags.FLAGS(argv)
        except flags.Error as error:
            sys.exit(report_error(f"{error} See --help."))
        if flags.FLAGS["verbosity"].using_default_value:
            logging.set_verbosity(logging.WARNING)  # JAX and Orbax report each step they take.
        if len(rest) > 1:
            sys.exit(report_error(f"unknown argument {rest[1]!r}. See --help."))
        return rest

    def main(_: list[str]) -> int:
        program = Path(sys.argv[0])
        called = ["python", *sys.argv] if program.suffix else [program.name, *sys.argv[1:]]
        files = gin_file.value if gin_file is not None else []
        try:
            _load_library()
            return script(Given(files, bindings, directory.value, shlex.join(called)))
        except (ValueError, OSError) as error:
            logging.debug("Traceback:", exc_info=True)  # With --verbosity=1.
            while isinstance(error.__context__, OSError) and getattr(error, "errno", 0) is None:
                error = error.__context__  # The error that gin raises in its place has no number.
            code = report_error(error)
            if isinstance(error, OSError) and error.errno in _NO_CAPACITY:
                os._exit(code)  # Threads that still write would print below the message.
            return code
        except KeyboardInterrupt:
            print(_STOPPED, file=sys.stderr)
            return INTERRUPTED

    app.run(main, argv, flags_parser=parse)


def _load_library() -> None:
    """Imports JAX and specdec."""

    def leave(*_: object) -> None:
        os.write(2, f"{_STOPPED}\n".encode())
        os._exit(INTERRUPTED)

    # An interrupted import of a C library may end as any error; nothing is written yet.
    before = signal.signal(signal.SIGINT, leave)
    importlib.import_module("specdec.api")
    signal.signal(signal.SIGINT, before)


def decode() -> None:
    """Decodes a task with a pair of models, compares with plain decoding, measures the speedup.

        specdec-decode --gin_file=configs/experiments/quickstart_ende.gin \\
            [--gin.GAMMA=4 ...] [--output_dir=DIR] [--text "..." | --input_file=FILE] [--dry_run]

    The same --output_dir continues a run that was stopped. Several processes share the work when
    each is started so, with --distributed, where JAX finds the others (TPU pods, SLURM, Open MPI),
    or with --coordinator_address=HOST:PORT --num_processes=N --process_id=I. If MESH is set, they
    hold one target over all their devices; if not, a copy each, and decode a part of the batches.
    """
    texts = flags.DEFINE_multi_string("text", [], "A text to decode instead; may be repeated.")
    file = flags.DEFINE_string("input_file", None, "A file to decode instead, one text per line.")
    dry_run = flags.DEFINE_bool("dry_run", False, _SIZES)
    found = "One of several processes, which JAX finds."
    distributed = flags.DEFINE_bool("distributed", False, found)
    coordinator = flags.DEFINE_string(
        "coordinator_address", None, "HOST:PORT of process 0, where JAX does not find it."
    )
    count = flags.DEFINE_integer("num_processes", None, "How many there are.", lower_bound=1)
    index = flags.DEFINE_integer("process_id", None, "This one's number.", lower_bound=0)
    timeout = flags.DEFINE_integer(
        "process_timeout", None, "Seconds to wait for a process.", lower_bound=1
    )

    def script(given: Given) -> int:
        from specdec.runs import gin_files, main
        from specdec.runs.processes import ALONE, TIMEOUT_SECONDS, ending_with_others, join

        if dry_run.value:
            _without_devices()
        where = (coordinator.value, count.value, index.value)
        several = distributed.value or where != (None, None, None)
        processes = ALONE
        if several and not dry_run.value:
            processes = join(*where, timeout.value or TIMEOUT_SECONDS)
        with ending_with_others(processes):
            return main.decode(
                given, gin_files.root(), texts=texts.value, input_file=file.value,
                dry_run=dry_run.value, distributed=several, processes=processes,
            )  # fmt: skip

    run(script, decode, "Where to write; out/<experiment>-<time> by default.")


def transcribe() -> None:
    """Transcribes files of sound with a pair of models, one line of JSON for each.

        specdec-transcribe --gin_file=configs/experiments/speech/large_v3_distil.gin \\
            --audio=FOLDER [--audio=FILE ...] [--gin.LANGUAGE='"de"' ...] [--output_dir=DIR] \\
            [--gin.SUBTITLES='("srt",)'] [--dry_run]

    The same --output_dir continues a run that was stopped: files that are done are not done again.
    """
    about = "A folder or a file of sound; files may be repeated."
    audio = flags.DEFINE_multi_string("audio", [], about)
    dry_run = flags.DEFINE_bool("dry_run", False, _SIZES)

    def script(given: Given) -> int:
        from specdec.runs import gin_files
        from specdec.runs.transcribe import transcribe

        if dry_run.value:
            _without_devices()
        return transcribe(given, gin_files.root(), audio=audio.value, dry_run=dry_run.value)

    run(script, transcribe, "Where to write; out/<experiment>-<time> by default.")


def _without_devices() -> None:
    """Keeps JAX from looking for accelerators, and from saying which it does not find."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def train() -> None:
    """Trains what a gin file describes: a vocabulary, a target, a draft or n-gram tables.

        specdec-train --gin_file=configs/training/quickstart_target.gin --output_dir=runs/target \\
            --gin.DATA_DIR="'data/ende_tatoeba'" --gin.VOCABULARY="'runs/vocabulary'"

    Run the same command again to continue a run that was stopped.
    """

    def script(given: Given) -> int:
        from specdec.runs import gin_files
        from specdec.runs.train import main

        return main(given, gin_files.root())

    where = "Directory of the run, which continues if it exists."
    run(script, train, where, required=True)


def convert() -> None:
    """Converts checkpoints between T5X, Hugging Face and Orbax (a training run), and checks them.

        specdec-convert --source=SOURCE --output_dir=DIR --format=huggingface|t5x|orbax

    SOURCE is a T5X checkpoint (gs://bucket/path too), a Hugging Face T5's directory or hub id, or a
    run of specdec-train. The result is opened again and must give the source's logits.
    """
    source = flags.DEFINE_string("source", None, "A checkpoint or a training run.", required=True)
    formats = ("huggingface", "t5x", "orbax")
    form = flags.DEFINE_enum("format", None, formats, "What to write.", required=True)
    dtypes = ("float32", "float16", "bfloat16")
    dtype = flags.DEFINE_enum("dtype", "float32", dtypes, "How weights are stored.")
    about = "Which of the source's steps; the latest if not given."
    step = flags.DEFINE_integer("step", None, about)

    def script(given: Given) -> int:
        from specdec.runs.convert import convert

        difference = convert(
            source.value, str(given.output_dir), form.value, dtype.value, step.value
        )
        print(f"Wrote {given.output_dir}; logits differ by at most {difference:g}.")
        return 0

    run(script, convert, "A new directory.", required=True, configured=False)
