"""Files of one JSON object a line, appended as results come, read back by a resumed run."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[str], T]) -> Iterator[T]:
    """Complete lines of a file one at a time, none if there is no file.

    A last line without an end was cut off by a kill and is left out.

    Raises:
      ValueError: ``parse`` fails on a complete line.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                parsed = parse(line.decode("utf-8"))
            except (ValueError, TypeError, KeyError):
                raise ValueError(
                    f"{path}:{number} is not a row of this program; remove the file to start "
                    "afresh."
                ) from None
            yield parsed


class LineWriter:
    """Appends lines to a file, each append on disk before the next; drops a torn last line.

    Raises:
      OSError: (on entering) another process does, or the file cannot be written.
    """

    def __init__(self, path: Path):
        self._path = path

    def __enter__(self) -> LineWriter:
        self._file: IO[bytes] = open(self._path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise OSError(f"{self._path} is being written by another process.") from None
        except OSError:
            pass  # A file system without locks.
        self._file.truncate(_end_of_lines(self._file))
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, *lines: str) -> None:
        """Writes lines and flushes them to the disk together."""
        self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        self._file.flush()
        os.fsync(self._file.fileno())


def _end_of_lines(file: IO[bytes]) -> int:
    """Bytes up to the last line's end; of a long file only its own end is read."""
    if not file.seek(0, os.SEEK_END):
        return 0  # Nothing that could be mapped.
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1
