"""Training runs, which gin files bind by import; ``scripts/train.py`` is their command line."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import gin

from specdec.core.files import write_text
from specdec.data.vocabulary import FILE_NAME, train_vocabulary
from specdec.measure.progress import say
from specdec.runs import gin_files
from specdec.runs.command_line import Given
from specdec.training.train import TextFiles


def run(directory: str, recipe: Callable[..., object]) -> None:
    """Calls ``recipe(directory)``: gin binds ``recipe``, and the recipe's other arguments."""
    recipe(directory)


def vocabulary(directory: str, *, files: TextFiles, size: int) -> None:
    """Trains one vocabulary of ``size`` pieces on both sides of the training text."""
    texts = itertools.chain.from_iterable(files.read("train"))
    train_vocabulary(texts, size, Path(directory) / FILE_NAME)
    say(f"Wrote {Path(directory) / FILE_NAME}.")


def main(given: Given, root: Path) -> None:
    """Parses the configuration, saves it in the directory as ``config.gin``, runs its recipe."""
    gin_files.parse(given.gin_files, given.bindings, root)
    configured = gin.get_configurable(run)
    directory = given.directory("train")
    write_text(directory / "config.gin", gin.config_str())
    configured(str(directory))
