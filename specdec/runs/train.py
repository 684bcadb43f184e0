"""Training runs bound by gin: ``scripts/train.py`` calls ``main``.

Gin files name what they bind by import (gin's dynamic registration), so the library itself needs
no gin decorators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import gin
from absl import logging


def run(directory: str, recipe: Callable[..., object] = gin.REQUIRED) -> None:
    """Calls ``recipe(directory)``; gin binds ``recipe`` and its other arguments."""
    recipe(directory)


def main(gin_files: Sequence[str], bindings: Sequence[str], directory: str | os.PathLike) -> None:
    """Parses the configuration, runs its recipe and leaves the operative configuration behind.

    Raises:
      ValueError: a macro or a parameter is missing, unknown or used by nobody.
    """
    directory = Path(directory)
    configured = gin.external_configurable(run, module="specdec.runs.train")
    gin.parse_config_files_and_bindings(gin_files, bindings)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.gin").write_text(gin.config_str())
    logging.info("Writing to %s.", directory)
    configured(str(directory))
