"""Parallel text: files of ``input<TAB>target`` lines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def read_pairs(path: str | os.PathLike) -> list[tuple[str, str]]:
    """All (input, target) pairs of a UTF-8 ``.tsv`` file, in the file's order.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is not UTF-8, or is not two non-empty fields around one tab; the message
        names the file and the line. Also raised for a file without lines.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No data file at {path}.")
    pairs = []
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason}).") from None
            fields = line.split("\t")
            if len(fields) != 2 or not all(field.strip() for field in fields):
                raise ValueError(
                    f"{path}:{number}: expected 'input<TAB>target', both non-empty; "
                    f"found {len(fields)} field(s)."
                )
            pairs.append((fields[0], fields[1]))
    if not pairs:
        raise ValueError(f"{path} is empty.")
    return pairs


def write_pairs(path: str | os.PathLike, pairs: Iterable[tuple[str, str]]) -> None:
    """Writes what :func:`read_pairs` reads; the file appears when it is whole.

    Raises:
      ValueError: a field is empty, or contains a tab or a line break.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8", newline="\n") as file:
        for pair in pairs:
            if not all(field.strip() and not set(field) & set("\t\r\n") for field in pair):
                raise ValueError(f"Not a line of parallel text: {pair!r}.")
            file.write("\t".join(pair) + "\n")
    os.replace(partial, path)
