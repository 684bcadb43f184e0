"""From command line to finished run, for ``scripts/decode.py``."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import gin
from gin.config import ConfigurableReference

from specdec.core.progress import say
from specdec.measure import traces
from specdec.measure.run_table import format_table
from specdec.runs import gin_files
from specdec.runs.command_line import Given, report_error
from specdec.runs.decode_run import DecodeRun
from specdec.runs.dry_run import report, what_processes_do
from specdec.runs.gin_bindings import configured
from specdec.runs.prepared_run import PreparedRun, written_files
from specdec.runs.processes import ALONE, Processes

SHOWN_ROWS = 3


def decode(
    given: Given, root: Path, *, texts: Sequence[str] = (), input_file: str | None = None,
    dry_run: bool = False, distributed: bool = False, processes: Processes = ALONE,
) -> int:  # fmt: skip
    """Runs a configuration and prints its traces and table.

    Args:
      root: where ``configs/`` is; included files are named from there.
      texts, input_file: decoded instead of the configuration's task.
      dry_run: only print what :func:`specdec.runs.dry_run.report` prints.
      distributed: whether several processes are to do what a dry run plans.
      processes: those that do the run together, all with the same arguments but for output_dir.

    Returns:
      the exit code: 0, or 2 for a mistake of the user, with one line on stderr. A run that is
      stopped raises SystemExit, see :meth:`specdec.runs.prepared_run.PreparedRun.execute`.
    """
    try:
        with processes.together():
            task = _given_task(texts, input_file)
            check = ["CHECK = False"] if input_file else []  # The command line's own may follow.
            gin_files.parse(given.gin_files, [*check, *given.bindings, *task], root)
            rows = _unread_task() if dry_run else ""
            run = configured(DecodeRun)
            config = gin.operative_config_str()
        if dry_run:
            folder = Path(given.output_dir) if given.output_dir else None
            print(
                gin.get_configurable(report)(
                    run,
                    root,
                    folder=folder,
                    reads=rows,
                    writes=written_files(run),
                    distributed=distributed,
                )
            )
            return 0
        processes.check_same(config)
        if processes.count > 1 and not processes.index:
            say(f"{processes.count} processes. {what_processes_do(run.mesh)}")
        name = f"{Path(given.gin_files[0]).stem}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        directory = Path(given.output_dir or Path("out", name))
        together = dataclasses.replace(processes, one_target=run.mesh is not None)
        prepared = PreparedRun(run, config, directory, together)
        processes.check_same(prepared.identity)
    except (ValueError, OSError) as error:
        return report_error(error)
    try:
        results = prepared.execute(given.command)
    except OSError as error:  # A full disk; a ValueError from here on would be a bug.
        return report_error(error)
    if not results:
        return 0
    rows, vocabulary = prepared.first_rows(SHOWN_ROWS), prepared.pair.vocabulary
    print(traces.terminal(rows, vocabulary, colour=traces.wants_colour(sys.stdout)), end="\n\n")
    print(format_table(results), end="\n\n")
    print(f"Written to {directory}: results.json, decodes.jsonl, trace.html, operative_config.gin")
    return 0


def _unread_task() -> str:
    """Takes the task out of the configuration, for it may read data; returns it in words."""
    task = gin.query_parameter("TASK/macro.value")
    with gin.unlock_config():
        gin.bind_parameter("TASK/macro.value", None)
    if not isinstance(task, ConfigurableReference):
        return ""
    with gin.config_scope(task.config_key[0] or None):
        settings = gin.get_bindings(task.selector)
    words = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
    name = task.selector.rpartition(".")[2]
    return f"rows of {textwrap.shorten(f'{name}: {words}'.rstrip(': '), 200)}"


def _given_task(texts: Sequence[str], input_file: str | None) -> list[str]:
    """Bindings that replace the task by the texts of the command line."""
    if texts and input_file:
        raise ValueError("Give either --text or --input_file.")
    if texts:
        return ["TASK = @given_texts()", f"given_texts.texts = {list(texts)!r}"]
    if input_file:  # In a scope of its own, to leave the configuration's bindings as they are.
        return ["TASK = @given/text_file()", f"given/text_file.path = {input_file!r}"]
    return []
