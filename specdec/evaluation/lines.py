"""Files of one JSON object a line, appended as results come, read back by a resumed run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[str], T]) -> list[T]:
    """Complete lines of a file, none if there is no file.

    A last line without an end was cut off by a kill and is left out.

    Raises:
      ValueError: ``parse`` fails on a complete line.
    """
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append(parse(line.decode("utf-8")))
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"{path}:{number} is not a row of this program; remove the file to start afresh."
            ) from None
    return parsed


class LineWriter:
    """Appends lines to a file, each on disk before the next; drops a torn last line."""

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> LineWriter:
        self._file: IO[bytes] = open(self._path, "ab")
        self._file.truncate(self._path.read_bytes().rfind(b"\n") + 1)
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, line: str) -> None:
        """Writes one line and flushes it to the disk."""
        self._file.write(line.encode("utf-8") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
