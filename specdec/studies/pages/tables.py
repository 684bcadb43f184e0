"""Sections of pages as declarations: results files, tables of them, texts, a picture."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.measure.tables import Columns, Formatter, table
from specdec.studies.pages.files import Result, read_json

# Where a page in ``docs`` has its numbers from: a format of a results file.
SOURCE = "[{path}](../{path}): {device}. `{command}`"
SUMMARY = "[summary.json](../{path}): {device}. `{command}`"
Rows = str | Callable[..., Iterable[Any]]


def leaves(
    content: Result, pattern: str, names: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """What stands at the paths of a pattern such as "drafts/*/{draft}/t{temperature}".

    Each leaf has, beside its own items, what the pattern names (by ``names``, where it is there)
    and the items above it that are no mappings. A step may be a regular expression.
    """
    found: list[tuple[dict[str, Any], Result]] = [({}, content)]
    names = names or {}
    for step in pattern.split("/"):
        key = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", step.replace("*", ".+")))
        found = [
            ({**above, **_items(each), **{k: names.get(v, v) for k, v in of.groupdict().items()}},
             below)
            for above, each in found for name, below in each.items()
            if (of := key.fullmatch(name)) and isinstance(below, Mapping)
        ]  # fmt: skip
    return ({**above, **leaf} for above, leaf in found)


def _items(each: Result) -> dict[str, Any]:
    return {name: value for name, value in each.items() if not isinstance(value, Mapping)}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, or lines of text, of results files.

    Attributes:
      rows: a pattern of :func:`leaves` of the first file, or a function of all files.
      columns: see :func:`.measure.tables.table`; or what makes them of the files; or the format of
        a line. Headings are formats of the first file.
      across: whether each of the columns is a line.
      names: of what the pattern names.
    """

    rows: Rows
    columns: Columns | str | Callable[..., Columns]
    across: bool = False
    names: Mapping[str, str] | None = None

    def __call__(self, *contents: Result) -> str:
        rows, columns, form = self.rows, self.columns, Formatter().of
        rows = leaves(contents[0], rows, self.names) if isinstance(rows, str) else rows(*contents)
        if isinstance(columns, str):
            return "\n".join(form(columns, row) for row in rows)
        columns = columns(*contents) if callable(columns) else columns
        headed = [(form(heading, contents[0]), cell) for heading, cell in columns]
        return table(headed, rows, numbers=True, across=self.across)


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """A table of cells that are texts already."""
    columns = [(heading, operator.itemgetter(index)) for index, heading in enumerate(headings)]
    return table(columns, rows, numbers=numbers)


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
      sources: results files.
      parts: tables, and texts as formats of the first file, or functions of all of them.
      draw: draws ``docs/images/PICTURE.svg`` from the files.
    """

    sources: Sequence[str]
    parts: Sequence[str | Callable[..., str]]
    picture: str = ""
    draw: Callable[..., None] | None = None


def render(root: Path, section: Section, *, draw: bool = False) -> str:
    """A section's text; draws its picture if it is to.

    Raises:
      PageError: a results file is missing or damaged.
    """
    contents = [read_json(root, name) for name in section.sources]
    if draw and section.draw is not None:
        section.draw(*contents, root / "docs" / "images" / f"{section.picture}.svg")
    texts = (
        Formatter().of(part, contents[0]) if isinstance(part, str) else part(*contents)
        for part in section.parts
    )
    return "\n\n".join(text.rstrip() for text in texts if text)
