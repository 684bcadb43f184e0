"""Rows of a run, in files of one JSON object a line: a killed run continues where it stopped."""

from __future__ import annotations

import collections
import dataclasses
import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from specdec.core.files import naming, parse_object, to_json
from specdec.core.progress import Progress
from specdec.decoding.batches import Batch

T = TypeVar("T")
R = TypeVar("R", bound=Any)  # A dataclass with an ``id``, its index in the task.
_CHECKSUM = b', "checksum": '


def read_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Complete lines of a file one at a time, none if there is no file.

    A last line without an end was cut off by a kill and is left out.

    Args:
      parse: makes a row of the fields that :func:`line_of` wrote.

    Raises:
      ValueError: a complete line is not as it was written, or ``parse`` fails on it.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            content, found, checksum = line.rstrip(b"\n").rpartition(_CHECKSUM)
            if found and checksum != b'"%08x"}' % zlib.crc32(content):
                raise ValueError(
                    f"{path}:{number} was changed after it was written: its checksum differs. "
                    "Remove the file to start again from the first row."
                )
            try:
                if not found:
                    raise ValueError("no checksum")
                parsed = parse(parse_object(f"{content.decode()}}}", str(path)))
            except (ValueError, TypeError, KeyError):
                raise ValueError(
                    f"{path}:{number} is not a row of this program; remove the file to start "
                    "again from the first row."
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
        with naming(self._path):
            self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())


def _end_of_lines(file: IO[bytes]) -> int:
    """Bytes up to the last line's end; of a long file only its own end is read."""
    if not file.seek(0, os.SEEK_END):
        return 0  # Nothing that could be mapped.
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1


def line_of(row: Any) -> str:
    """A dataclass as a line of JSON, without the line's end; its last field is a checksum."""
    content = to_json(dataclasses.asdict(row)).removesuffix("}")
    return f'{content}{_CHECKSUM.decode()}"{zlib.crc32(content.encode("utf-8")):08x}"}}'


def append_missing(
    append: Callable[..., object], batches: Iterable[T], done: int, size: Callable[[T], int],
    measure: Callable[[Iterator[T]], Iterable[Iterable[Any]]],
) -> Iterator[tuple[int, T, list[Any]]]:  # fmt: skip
    """Appends the rows that follow the first ``done`` ones, a batch at a time.

    Args:
      append: given a batch's new lines, puts them on disk.
      batches: all of the run's, in its order.
      done: rows that are in the file.
      size: how many rows a batch has.
      measure: gives all rows of each of some batches, dataclasses, in their order; it may read
        batches ahead.

    Returns:
      (number, batch, new rows) of each batch that lacked some, when they are on disk.
    """
    begun: collections.deque[tuple[int, T, int]] = collections.deque()

    def lacking(before: int) -> Iterator[T]:
        for number, batch in enumerate(batches):
            if before < size(batch):
                # The whole batch again even if a part is done.
                begun.append((number, batch, before))
                yield batch
            before = max(0, before - size(batch))

    for measured in measure(lacking(done)):
        number, batch, before = begun.popleft()
        rows = list(measured)[before:]
        append(*map(line_of, rows))
        yield number, batch, rows


def measure_rows(
    path: Path, batches: Sequence[Batch], row_type: type[R],
    measure: Callable[[Batch, Mapping[int, int]], Iterable[R]],
) -> list[R]:  # fmt: skip
    """Reads the rows of a file of JSON lines, and measures and appends those it lacks.

    Args:
      measure: (batch, places) -> rows; ``places`` maps the id of each row to its place in the
        batch, and the rows come in that order.

    Returns:
      all rows, by id.

    Raises:
      OSError: the file cannot be read or written.
      ValueError: it holds rows that are not the first ones of these batches.
    """
    ids = [row for batch in batches for row in _places(batch)]
    with LineWriter(path) as writer:
        rows = list(read_lines(path, lambda fields: row_type(**fields)))
        if [row.id for row in rows] != ids[: len(rows)]:
            raise ValueError(f"{path} holds other rows than are measured now; remove it.")
        if len(rows) < len(ids):
            with Progress(len(ids), "rows", done=len(rows), name=path.stem) as progress:
                for _, done, found in append_missing(
                    writer.append, batches, len(rows), lambda batch: len(_places(batch)),
                    lambda some: (measure(batch, _places(batch)) for batch in some),
                ):  # fmt: skip
                    rows += found
                    progress.add(len(found), kind=done.shape)
    return sorted(rows, key=lambda row: row.id)


def _places(batch: Batch) -> dict[int, int]:
    """The index of each row in a batch, by its id."""
    return {row: index for index, row in enumerate(batch.row_ids.tolist()) if row >= 0}
