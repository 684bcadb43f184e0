"""What was measured before, in the user's cache directory."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from specdec.core.files import write_json


def recall(path: Path, key: str) -> Any:
    """What was kept for ``key``, or None if nothing can be read."""
    try:
        return json.loads(path.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, key: str, value: Any) -> None:
    """Keeps something for later; a directory that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        try:
            known = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            known = {}
        write_json(path, known | {key: value})
