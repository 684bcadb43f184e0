"""Text a line at a time, and parallel text: files of ``input<TAB>target`` lines."""

from __future__ import annotations

import codecs
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from specdec.core.files import write_parts

T = TypeVar("T")
# A space after a full stop, with or without a closing quote, but not after a title of a person.
_TITLES = "".join(rf"(?<!\b{title}\.)" for title in ("Mr", "Mrs", "Dr", "St", "Esq"))
_SENTENCE_END = re.compile(rf"(?:(?<=[.!?])|(?<=[.!?][\"'”’])){_TITLES}\s+(?=[\"'“‘]?[A-Z])")


@dataclasses.dataclass(frozen=True)
class BadRow:
    """Stand-in for a row that cannot be used."""

    origin: str  # Where it came from ("talk.txt:12").
    reason: str  # A sentence that names it.


def existing_file(path: str | os.PathLike) -> Path:
    """The path of a file with something in it.

    Raises:
      FileNotFoundError, ValueError: there is no such file, it is empty, or it is UTF-16.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No data file at {path}.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty.")
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{path} is UTF-16; save it as UTF-8.")
    return path


def text_of(raw: bytes) -> str:
    """The text of UTF-8 bytes; raises ValueError for others."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason}).") from None


def _line_of(raw: bytes) -> str:
    """A line without its end; raises ValueError if it is no UTF-8, or none that has one line."""
    line = text_of(raw).rstrip("\r\n")
    if "\r" in line:
        raise ValueError(
            "a carriage return inside the line. Lines must end with a line feed: convert the file."
        )
    if "\0" in line:
        raise ValueError("a NUL character. If the file is UTF-16, save it as UTF-8.")
    return line


def stream_lines(path: Path, parse: Callable[[str], T]) -> Iterator[tuple[str, T] | BadRow]:
    """Origin and parsed text of each line of a UTF-8 file, or a :class:`BadRow`.

    A byte order mark at the file's start is ignored. ``parse`` gets a line without its end and
    raises ValueError for a bad one.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            origin = f"{path}:{number}"
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                row = origin, parse(_line_of(raw))
            except ValueError as error:
                row = BadRow(origin, f"{origin}: {error}")
            yield row


def sentences_of(text: str) -> list[str]:
    """The sentences of a paragraph of English, roughly; spaces and line breaks are one space."""
    return list(filter(None, _SENTENCE_END.split(" ".join(text.split()))))


def pair_of(line: str) -> tuple[str, str]:
    """The two fields of a line; raises ValueError unless both are there, around one tab."""
    fields = line.split("\t")
    if len(fields) != 2 or not all(field.strip() for field in fields):
        raise ValueError(
            f"expected 'input<TAB>target', both non-empty; found {len(fields)} field(s)."
        )
    return fields[0], fields[1]


def fields_of(line: str) -> list[str]:
    """The fields of a line, three or more; raises ValueError for fewer, or an empty first one."""
    fields = line.split("\t")
    if len(fields) < 3 or not fields[0].strip():
        raise ValueError(
            "expected 'input<TAB>reference<TAB>text', the input non-empty; found "
            f"{len(fields)} field(s)."
        )
    return fields


def stream_pairs(path: str | os.PathLike) -> Iterator[tuple[str, str]]:
    """(input, target) pairs of a UTF-8 ``.tsv`` file, in the file's order.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is empty, or a line (which is named) is not UTF-8 or not :func:`pair_of` two.
    """
    for row in stream_lines(existing_file(path), pair_of):
        if isinstance(row, BadRow):
            raise ValueError(row.reason)
        yield row[1]


def read_pairs(path: str | os.PathLike) -> list[tuple[str, str]]:
    """All of :func:`stream_pairs`, which lists what it raises."""
    return list(stream_pairs(path))


def write_pairs(path: str | os.PathLike, pairs: Iterable[tuple[str, str]]) -> None:
    """Writes a file that :func:`read_pairs` reads; the file appears when it is whole.

    Raises:
      ValueError: a field is empty, or contains a tab or a line break.
    """

    def line(pair: tuple[str, str]) -> str:
        if not all(field.strip() and not set(field) & set("\t\r\n") for field in pair):
            raise ValueError(f"Not a line of parallel text: {pair!r}.")
        return "\t".join(pair) + "\n"

    write_parts(Path(path), map(line, pairs))
