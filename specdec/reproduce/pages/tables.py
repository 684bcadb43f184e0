"""Pages with sections that are made of results files: tables and texts, as declarations."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.core.files import read_object, write_text
from specdec.measure.tables import Columns, Formatter, table

# Where a page in ``docs`` has its numbers from: a format of a results file.
MADE_BY = "[command and commit](../results/README.md)"
SOURCE = f"[{{path}}](../{{path}}): {{device}}; {MADE_BY}."
Part = str | Callable[..., str]
Result = Mapping[str, Any]


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


def table_of(
    rows: Callable[..., Iterable[Any]], columns: Columns, *, numbers: bool = True, **how: Any
) -> Callable[..., str]:
    """A table of results files, as a function of them: :func:`specdec.measure.tables.table`.

    Args:
      rows: a function of the files; without any there is no table.
      numbers, how: of the table.
    """

    def made(*contents: Result) -> str:
        found = list(rows(*contents))
        return table(columns, found, numbers=numbers, **how) if found else ""

    return made


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


# Errors of a section whose results are damaged.
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
_SECTION = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


class PageError(ValueError):
    """A results file or a page is not as it should be."""


def rewrite(path: Path, section: Callable[[str], str], *, check: bool) -> bool:
    """Writes a page's sections, unless it is to ``check`` only; whether they changed.

    Raises:
      PageError: the page has no section, or a results file is missing or damaged.
    """
    old = path.read_text(encoding="utf-8")
    if not _SECTION.search(old):
        raise PageError(f"{path} has no section between <!-- NAME --> and <!-- /NAME -->.")

    def made(name: str) -> str:
        try:
            return section(name)
        except PageError:
            raise
        except _DAMAGED as error:
            what = f"{type(error).__name__}: {error}"
            raise PageError(
                f"The section {name} of {path} cannot be made: something in its results files is "
                f"missing, or not what it was ({what})."
            ) from error

    new = _SECTION.sub(lambda m: f"<!-- {m[1]} -->\n{made(m[1])}\n<!-- /{m[1]} -->", old)
    if new != old and not check:
        write_text(path, new)
    return new != old


def read_json(root: Path, name: str) -> dict[str, Any]:
    """A results file, with its "path"; raises PageError if it is missing or no JSON object."""
    try:
        return {**read_object(root / name), "path": name}
    except FileNotFoundError:
        raise PageError(f"{name} is missing.") from None
    except ValueError as error:
        raise PageError(str(error)) from None
