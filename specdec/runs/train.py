"""Training runs, which gin files bind by import; ``specdec-train`` is their command line."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import gin

from specdec.core.files import check_writable, write_text
from specdec.core.progress import say
from specdec.runs import gin_files
from specdec.runs.command_line import FAILURE, Given, told
from specdec.text.files import TOKENIZER, VOCABULARY
from specdec.text.vocabulary import train_vocabulary
from specdec.text.word_pieces import train_word_pieces
from specdec.training.train import Files


def run(directory: str, recipe: Callable[..., object]) -> None:
    """Calls ``recipe(directory)``: gin binds ``recipe``, and the recipe's other arguments."""
    recipe(directory)


def vocabulary(directory: str, *, files: Files, size: int) -> None:
    """Trains one vocabulary of ``size`` pieces on both sides of the training text."""
    texts = itertools.chain.from_iterable(files.read("train"))
    train_vocabulary(texts, size, Path(directory) / VOCABULARY)
    say(f"Wrote {Path(directory) / VOCABULARY}.")


def word_pieces(directory: str, *, files: Files, size: int) -> None:
    """Trains one WordPiece vocabulary of ``size`` pieces on both sides of the training text."""
    texts = itertools.chain.from_iterable(files.read("train"))
    say(f"Wrote {train_word_pieces(texts, size, Path(directory) / TOKENIZER).path}.")


def main(given: Given, root: Path) -> int:
    """Parses the configuration and runs its recipe; returns the exit code.

    The directory's ``config.gin`` is there from the start, but not of a run that was refused.
    """
    directory = given.directory("train")
    config = directory / "config.gin"
    try:
        check_writable(directory)
        gin_files.parse(given.gin_files, given.bindings, root)
        before = config.read_text(encoding="utf-8") if config.exists() else None
        write_text(config, gin.config_str())
        try:
            gin.get_configurable(run)(str(directory))
        except (ValueError, FileNotFoundError):
            if before is not None:
                write_text(config, before)
            elif [path.name for path in directory.iterdir()] == [config.name]:
                shutil.rmtree(directory)
            raise
    except FloatingPointError as error:
        told(error)
        return FAILURE
    return 0
