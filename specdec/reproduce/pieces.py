"""The contract of a reproduction's pieces of work, and the loop that carries them out.

A piece has a directory and a result of its own. What is on disk is not measured again, so a run
that was killed goes on.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from specdec.core import files
from specdec.core.progress import Progress

Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Done:
    """A piece's result, as JSON, and whether it took measuring; if not, all of it was on disk."""

    result: Result
    measured: bool

    @property
    def numbers(self) -> Result:
        """The result without its settings."""
        return {name: value for name, value in self.result.items() if name != "settings"}


class Piece(Protocol):
    """A timed decode, a measurement of alpha, a compiled decode or a benchmark's workload."""

    @property
    def path(self) -> tuple[str, ...]:
        """Folders below the run's directory; also the keys of the result in its summary."""
        ...

    def do(self, directory: Path) -> Done:
        """Measures results that the directory lacks, keeps them there, and gives the whole result.

        What is kept is used again for the same settings, weights and texts only. Rows that a
        stopped call left are kept; times are all of one call.

        Raises:
          OSError: the directory cannot be written to.
          ValueError: what is there is damaged or another measurement's; or a model, a row or a
            setting is not as it should be.
        """
        ...


def carry_out(
    pieces: Sequence[Piece], directory: Path, unit: str = "pieces"
) -> Iterator[tuple[tuple[str, ...], Result]]:
    """Each piece's path and result, in order; shows progress.

    Raises:
      ValueError: two pieces have one path; or as a piece does.
    """
    counts = Counter(piece.path for piece in pieces)
    if twice := [path for path, count in counts.items() if count > 1]:
        where = "/".join(twice[0])
        raise ValueError(f"{where} is there twice: give studies and rows that differ.")
    with Progress(len(pieces), unit) as progress:
        for piece in pieces:
            progress.begin("/".join(piece.path))
            done = piece.do(directory.joinpath(*piece.path))
            progress.add() if done.measured else progress.skip(1)
            yield piece.path, done.result
            # A process may map only so much memory: hundreds of programs are too many.
            jax.clear_caches()
            gc.collect()


def kept(file: Path, settings: Mapping[str, Any], make: Callable[[], Result]) -> Done:
    """Result of these settings: from the file, or made now and kept there.

    ``settings`` are as JSON gives them back, and become the key "settings".

    Raises:
      ValueError: the file is damaged.
    """
    if file.is_file():
        try:
            found = files.read_object(file)
        except ValueError as error:
            raise ValueError(f"{error} Remove it, and it is measured again.") from None
        if found.get("settings") == settings:
            return Done(found, measured=False)
    found = make() | {"settings": settings}
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(file, found)
    return Done(files.read_object(file), measured=True)  # As it will be read.


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_")
