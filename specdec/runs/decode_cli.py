"""From command line to finished run: ``scripts/decode.py`` calls :func:`main`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import gin

from specdec.measure import traces
from specdec.measure.table import format_table
from specdec.runs import gin_files
from specdec.runs.decode import PreparedRun
from specdec.runs.decode_run import DecodeRun
from specdec.runs.dry_run import report
from specdec.runs.gin_bindings import configured_run
from specdec.runs.processes import ALONE, Processes

SHOWN_ROWS = 3
USER_ERROR = 2


def main(
    gin_file_names: Sequence[str],
    bindings: Sequence[str],
    *,
    root: Path,
    command: str,
    output_dir: str | None = None,
    texts: Sequence[str] = (),
    input_file: str | None = None,
    dry_run: bool = False,
    processes: Processes = ALONE,
) -> int:
    """Runs a configuration and prints its traces and table.

    Args:
      gin_file_names, bindings: see :func:`specdec.runs.gin_files.parse`.
      root: where ``configs/`` is; included files are named from there.
      command: how to do this again, for ``results.json``.
      output_dir: out/<experiment>-<time> if None.
      texts, input_file: decoded instead of the configuration's task.
      dry_run: only print what :func:`specdec.runs.dry_run.report` says of it.
      processes: those that do the run together, all with the same arguments but for output_dir.

    Returns:
      the exit code: 0, or 2 for a mistake of the user's, told in one line on stderr.

    Raises:
      SystemExit: 143 or 130, see :meth:`specdec.runs.decode.PreparedRun.execute`.
    """
    try:
        with processes.together():
            task = ["TASK = None"] if dry_run else _given_task(texts, input_file)
            gin_files.parse(gin_file_names, [*bindings, *task], root)
            run = _configured_run()
            config = gin.operative_config_str()
        if dry_run:
            print(gin.get_configurable(report)(run, root))
            return 0
        processes.check_same(config)
        with processes.together():
            directory = Path(output_dir) if output_dir else _new_directory(gin_file_names[0])
            prepared = PreparedRun(run, config, directory, processes)
        processes.check_same(prepared.identity)
    except (ValueError, OSError) as error:
        return _fail(error)
    try:
        results = prepared.execute(command)
    except OSError as error:  # A full disk; a ValueError from here on would be a bug.
        return _fail(error)
    if not results:
        return 0
    colour = traces.wants_colour(sys.stdout)
    vocabulary = prepared.pair.vocabulary
    rows = prepared.first_rows(SHOWN_ROWS)
    print(traces.terminal(rows, vocabulary, colour=colour), end="\n\n")
    print(format_table(results), end="\n\n")
    print(f"Written to {directory}: results.json, decodes.jsonl, trace.html, operative_config.gin")
    return 0


def _given_task(texts: Sequence[str], input_file: str | None) -> list[str]:
    """Bindings that put what the command line gave in the task's place."""
    if texts and input_file:
        raise ValueError("Give either --text or --input_file.")
    if texts:
        return ["TASK = @given_texts()", f"given_texts.texts = {list(texts)!r}"]
    if input_file:  # In a scope of its own, to leave the configuration's bindings as they are.
        return ["TASK = @given/text_file()", f"given/text_file.path = {input_file!r}"]
    return []


def _configured_run() -> DecodeRun:
    try:
        return cast(DecodeRun, configured_run())
    except TypeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"A setting has a value of the wrong type: {reason}.") from None


def _new_directory(gin_file: str) -> Path:
    return Path("out") / f"{Path(gin_file).stem}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def _fail(error: Exception) -> int:
    print(f"error: {gin_files.one_line(error)}", file=sys.stderr)
    return USER_ERROR
