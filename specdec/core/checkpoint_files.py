"""Reads the files of a checkpoint; a bad file is a CheckpointError that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec.core.files import read_object

_POINTER = b"version https://git-lfs"


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written; the message names what is wrong and what to do."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))  # One line, whatever a file's names are.


def check_whole(path: Path) -> None:
    """CheckpointError for a file that cannot be read, or is only Git LFS's pointer to it."""
    try:
        with open(path, "rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from None
    if pointer:
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself: install Git LFS and run "
            "`git lfs pull` in that directory."
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a CheckpointError names a file that is absent or holds anything else."""
    if not path.exists():
        raise CheckpointError(
            f"{path.parent} has no {path.name}; pass the directory of a checkpoint."
        )
    check_whole(path)
    try:
        return read_object(path)
    except ValueError as error:
        raise CheckpointError(f"{str(error)[:-1]}; copy or download it again.") from None
