"""A study's pieces on disk: what was measured once, with the same settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.api import Pair
from specdec.core import files
from specdec.core.machine import fingerprint


def kept(
    file: Path, pair: Pair, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """:func:`kept_of` these settings and the fingerprints of a pair's weights."""
    weights = [fingerprint(pair.target.params), fingerprint(pair.draft.weights)]
    return kept_of(file, {"weights": weights, **settings}, make)


def kept_of(
    file: Path, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What the file holds of these settings, or what is made now, and kept there.

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
            return found
    found = make() | {"settings": settings}
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(file, found)
    return found
