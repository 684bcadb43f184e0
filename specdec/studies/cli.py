"""From command line to finished reproduction, for ``scripts/reproduce.py``."""

from __future__ import annotations

from pathlib import Path

from specdec.runs import gin_files
from specdec.runs.command_line import Given, told
from specdec.studies import paper_tables
from specdec.studies.bindings import configured
from specdec.studies.runs.reproduce import SUMMARY, TABLES, Reproduction


def reproduce(given: Given, root: Path, *, dry_run: bool = False) -> int:
    """Runs a configuration and prints its tables; returns the exit code.

    ``dry_run`` only prints what :meth:`~specdec.studies.runs.reproduce.Reproduction.plan` prints.
    """
    directory = given.directory("reproduce")
    try:
        gin_files.parse(given.gin_files, given.bindings, root)
        reproduction = configured(Reproduction)
        if dry_run:
            print(reproduction.plan(root))
            return 0
        content = reproduction.run(directory, given.command)
    except (ValueError, OSError) as error:
        return told(error)
    if reproduction.studies:
        print(paper_tables.page(content))
    tables = f", {TABLES}" if reproduction.studies else ""
    print(f"Written to {directory}: {SUMMARY}{tables}")
    return 0
