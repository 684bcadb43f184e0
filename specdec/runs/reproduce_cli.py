"""From command line to finished reproduction: ``scripts/reproduce.py`` calls :func:`main`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from specdec.reproduction import paper_tables
from specdec.runs import gin_files
from specdec.runs.gin_bindings import configured_reproduction
from specdec.runs.reproduce import SUMMARY, TABLES, Reproduction

USER_ERROR = 2


def main(
    gin_file_names: Sequence[str],
    bindings: Sequence[str],
    *,
    directory: Path,
    root: Path,
    command: str,
    dry_run: bool = False,
) -> int:
    """Runs a configuration; returns the exit code: 0, or 2 for a mistake told on stderr.

    ``dry_run`` only prints what :meth:`specdec.runs.reproduce.Reproduction.plan` says of it.
    """
    try:
        gin_files.parse(gin_file_names, bindings, root)
        reproduce = cast(Callable[[], Reproduction], configured_reproduction)()
        if dry_run:
            print(reproduce.plan(root))
            return 0
        content = reproduce.run(directory, command)
    except (ValueError, OSError) as error:
        print(f"error: {gin_files.one_line(error)}", file=sys.stderr)
        return USER_ERROR
    print(paper_tables.page(content))
    print(f"Written to {directory}: {SUMMARY}, {TABLES}")
    return 0
