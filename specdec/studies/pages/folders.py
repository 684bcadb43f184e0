"""The table of results/README.md: a row for each folder of results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specdec.measure import tables
from specdec.studies.pages.files import PageError, Result, read_json

FILES = ("results.json", "summary.json")
_CONFIG = re.compile(r"--gin_file=(\S+)")
# What a configuration's first comment says before its command: its first sentence.
_SENTENCE = re.compile(r"\. .*")
# Of what has no configuration.
_SHOWS = {
    "scaling": "What T5-XXL and a T5 of 110 B would do on accelerators, computed.",
    "dataset_decoding": "Data-set decoding that is killed and continued, and its memory.",
}


def _shows(root: Path, folder: str, command: str) -> str:
    configs = _CONFIG.findall(command)
    if not configs:
        return _SHOWS[folder]
    found = []
    for config in configs:
        path = root / config
        if not path.is_file():
            raise PageError(f"The command of results/{folder} names {config}, which is not there.")
        head = path.read_text(encoding="utf-8").split("\n# Command:")[0]
        text = " ".join(line.removeprefix("# ") for line in head.splitlines() if line[:2] == "# ")
        found.append(_SENTENCE.sub(".", text))
    return " ".join(found)


def _commit(content: Result) -> str | None:
    """Of results whose date was not kept."""
    sha = content.get("git_sha")
    return sha and f"not kept; commit {sha[:7]}"


def _rows(root: Path) -> Iterator[Result]:
    results = root / "results"
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    texts = {page.relative_to(root).as_posix(): page.read_text(encoding="utf-8") for page in pages}
    for path in sorted(path for name in FILES for path in results.rglob(name)):
        folder = path.parent.relative_to(results).as_posix()
        content = read_json(root, path.relative_to(root).as_posix())
        shown = [page for page, text in texts.items() if f"results/{folder}/" in text]
        if not shown:
            raise PageError(f"No page shows results/{folder}.")
        yield {
            "folder": f"[{folder}]({folder}/{path.name})",
            "shows": _shows(root, folder, content["command"]),
            "pages": ", ".join(f"[{page}](../{page})" for page in shown),
            "device": content.get("device"), "date": content.get("date") or _commit(content),
            "command": content["command"],
        }  # fmt: skip


def table(root: Path) -> str:
    """All folders, with what they show, the pages that show them, and how they were made.

    Raises:
      PageError: a folder has no results file, no page shows it, or its configuration is gone.
    """
    for folder in (root / "results").iterdir():
        if folder.is_dir() and not any(True for name in FILES for _ in folder.rglob(name)):
            raise PageError(f"results/{folder.name} has no {' and no '.join(FILES)}.")
    columns = [
        ("folder", "{folder}"), ("what it shows", "{shows}"), ("page", "{pages}"),
        ("machine", "{device}"), ("date", "{date}"), ("command", "`{command}`"),
    ]  # fmt: skip
    return tables.table(columns, _rows(root))
