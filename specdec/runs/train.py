"""Training runs bound by gin; ``scripts/train.py`` is their command line.

Gin files name what they bind by import (gin's dynamic registration), so the library itself needs
no gin decorators.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import gin

from specdec.core.files import write_text
from specdec.data.vocabulary import FILE_NAME, train_vocabulary
from specdec.measure.progress import say
from specdec.runs import gin_files
from specdec.training.train import TextFiles


def run(directory: str, recipe: Callable[..., object]) -> None:
    """Calls ``recipe(directory)``: gin binds ``recipe``, and the recipe's other arguments."""
    recipe(directory)


def vocabulary(directory: str, *, files: TextFiles, size: int) -> None:
    """Trains one vocabulary of ``size`` pieces on both sides of the training text."""
    texts = itertools.chain.from_iterable(files.read("train"))
    train_vocabulary(texts, size, Path(directory) / FILE_NAME)
    say(f"Wrote {Path(directory) / FILE_NAME}.")


def main(
    gin_file_names: Sequence[str],
    bindings: Sequence[str],
    directory: str | os.PathLike,
    root: Path,
) -> None:
    """Parses the configuration, saves it as ``config.gin`` in ``directory``, runs its recipe.

    Raises:
      ValueError: a binding names nothing, or a macro that the file leaves open is not given.
      Also whatever the recipe raises.
    """
    gin_files.parse(gin_file_names, bindings, root)
    configured = gin.get_configurable(run)
    write_text(Path(directory) / "config.gin", gin.config_str())
    configured(str(directory))
