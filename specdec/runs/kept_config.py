"""``operative_config.gin``: what a run's directory holds the results of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.core import files

CONFIG = "operative_config.gin"
_END = "# ---\n"  # Of the provenance above a configuration.


def is_of(directory: Path, identity: str) -> bool:
    """Whether a directory is of the run with this text, of its configuration and weights."""
    saved = directory / CONFIG
    text = saved.read_text(encoding="utf-8", errors="replace") if saved.is_file() else ""
    return text.endswith(_END + identity)


def keep(directory: Path, identity: str, source: Mapping[str, Any]) -> None:
    """Makes a directory that of a run, with its provenance."""
    header = "".join(f"# {name}: {value}\n" for name, value in source.items())
    files.write_text(directory / CONFIG, header + _END + identity)


def other_run(directory: Path, file: str, what: str = "decodes") -> ValueError:
    """The error of a directory that holds what another run wrote."""
    return ValueError(
        f"{directory} holds the {what} of another configuration or of other weights (compare its "
        f"{CONFIG}); choose another --output_dir or remove {file} there."
    )
