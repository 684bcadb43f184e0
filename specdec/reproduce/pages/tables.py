"""Sections of pages as declarations: results files, tables of them, texts, a picture."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.measure.tables import Columns, Formatter, table
from specdec.reproduce.pages.files import Result, read_json

# Where a page in ``docs`` has its numbers from: a format of a results file.
MADE_BY = "[command and commit](../results/README.md)"
SOURCE = f"[{{path}}](../{{path}}): {{device}}; {MADE_BY}."
Part = str | Callable[..., str]


def leaves(content: Result, pattern: str) -> Iterator[dict[str, Any]]:
    """Leaves at the paths of a pattern such as "drafts/*/{draft}/t{temperature}".

    Each leaf has, beside its own items, what the pattern names and the items above it that are no
    mappings. A step may be a regular expression.
    """
    found: list[tuple[dict[str, Any], Result]] = [({}, content)]
    for step in pattern.split("/"):
        key = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", step.replace("*", ".+")))
        found = [
            ({**above, **_items(each), **of.groupdict()}, below)
            for above, each in found for name, below in each.items()
            if (of := key.fullmatch(name)) and isinstance(below, Mapping)
        ]  # fmt: skip
    return ({**above, **leaf} for above, leaf in found)


def _items(each: Result) -> dict[str, Any]:
    return {name: value for name, value in each.items() if not isinstance(value, Mapping)}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of results files.

    Attributes:
      rows: a function of the files; without any there is no table.
      columns, across, numbers, missing: see :func:`.measure.tables.table`.
    """

    rows: Callable[..., Iterable[Any]]
    columns: Columns
    across: bool = False
    numbers: bool = True
    missing: str = "–"

    def __call__(self, *contents: Result) -> str:
        rows = list(self.rows(*contents))
        how = {"numbers": self.numbers, "across": self.across, "missing": self.missing}
        return table(self.columns, rows, **how) if rows else ""


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
    """

    sources: Sequence[str]
    parts: Sequence[Part]


def joined(parts: Sequence[Part], *contents: Result) -> str:
    """The text of a section's parts."""
    made = [p(*contents) if callable(p) else Formatter().of(p, contents[0]) for p in parts]
    return "\n\n".join(text for text in made if text)


def render(root: Path, section: Section) -> str:
    """A section's text.

    Raises:
      PageError: a results file is missing or damaged.
    """
    contents = [read_json(root, name) for name in section.sources]
    return joined(section.parts, *contents)
