"""Atomic files: a reader finds either the old file or the new one, whole."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pickle
import platform
import reprlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_IN_MEMORY = 1 << 20  # Bytes that are kept without a file.
_SIZE = 8  # Bytes before a value, which say how many it has.


class Kept(Generic[T]):
    """Values to be read again and again while few are held: many are in a file without a name.

    Raises:
      OSError: the directory for temporary files is full or cannot be written to.
    """

    def __init__(self, values: Iterable[T]):
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="specdec-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        with naming(Path(tempfile.gettempdir())):
            for value in values:
                content = pickle.dumps(value)
                self._file.write(len(content).to_bytes(_SIZE) + content)

    def __iter__(self) -> Iterator[T]:
        at = 0
        while True:
            self._file.seek(at)  # Another iterator may have read elsewhere.
            size = int.from_bytes(self._file.read(_SIZE))
            if not size:
                return
            value = pickle.loads(self._file.read(size))
            at += _SIZE + size
            yield value


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path to write a file or a directory to, which takes its name when all is on disk.

    It replaces a file or an empty directory, and makes its parents. A failure leaves nothing
    behind. Remains of a killed process are removed.

    Raises:
      OSError: it cannot be written, or a directory with something in it has the name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = f".{path.name}.{platform.node()}."  # Hosts share directories, and count from 1 each.
    for left in path.parent.glob(f"{glob.escape(mine)}*.partial"):
        if not _runs(int(left.name.split(".")[-2])):
            _remove(left)
    partial = path.with_name(f"{mine}{os.getpid()}.partial")
    _remove(partial)
    try:
        with naming(path):
            yield partial
            for file in [partial, *partial.rglob("*")]:
                if file.is_file():
                    with open(file, "rb") as opened:
                        os.fsync(opened)  # A machine that is taken away keeps the whole file too.
            partial.replace(path)
    finally:
        _remove(partial)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds this file's name to an OSError without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # Somebody else's.
        pass
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_parts(path: Path, parts: Iterable[str]) -> None:
    """Writes a file of these texts, one after the other; see :func:`written`."""
    with written(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(parts)


def write_text(path: Path, text: str) -> None:
    """Writes a file of this text; see :func:`written`."""
    write_parts(path, [text])


def to_json(content: Any, indent: int | None = None) -> str:
    """JSON text.

    Raises:
      ValueError: a number is NaN or infinite, which JSON does not have.
    """
    try:
        return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"JSON has no NaN and no infinity: {error}.") from None


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, indented; see :func:`written` and :func:`to_json`."""
    write_text(path, to_json(content, indent=2) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object.

    Raises:
      OSError: it cannot be read.
      ValueError: it holds anything else; the message is a line that names it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}).") from None
    return parse_object(text, str(path))


def parse_object(text: str, name: str) -> dict[str, Any]:
    """A JSON object, strictly: NaN, Infinity and duplicate names are errors.

    Raises:
      ValueError: it is anything else; the message is a line that begins with ``name``.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        content = json.loads(text, parse_constant=refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # The latter for what is nested without end.
        raise ValueError(f"{name} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not a JSON object.")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as a dict; ValueError for a duplicate name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {reprlib.repr(name)} is there twice")
            seen.add(name)
    return found


def check_writable(directory: Path) -> None:
    """Raises OSError unless files can be made in a directory, or it can be made itself.

    Leaves nothing behind.
    """
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise NotADirectoryError(f"Cannot write to {directory}: {existing} is not a directory.")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise type(error)(f"Cannot write to {directory}: {existing}: {reason}.") from None
