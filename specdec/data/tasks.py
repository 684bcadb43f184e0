"""What a run decodes: texts, with references where there are any."""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from specdec.data.text import read_pairs

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Example:
    """One text to decode.

    Attributes:
      input: never blank.
      reference: what a person would have written; None where nobody did.
      origin: where it came from, for messages ("talk.txt:12").
    """

    input: str
    reference: str | None
    origin: str


@dataclasses.dataclass(frozen=True)
class Task:
    """Named examples, in order; an example's id is its place."""

    name: str
    examples: tuple[Example, ...]


def evenly(items: Sequence[T], count: int) -> Sequence[T]:
    """``count`` of the items (or all, if they are fewer), evenly spread over their order.

    Data sets are often sorted by length: the first items stand for no others.
    """
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def given_texts(texts: Sequence[str]) -> Task:
    """The task "text": each string is one example.

    Raises:
      ValueError: a text is blank.
    """
    examples = tuple(Example(text, None, f"text {i}") for i, text in enumerate(texts))
    return Task("text", _not_blank(examples))


def text_file(path: str | os.PathLike) -> Task:
    """A UTF-8 file with one text a line; the task is named after the file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is empty, a line is blank or not UTF-8; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No input file at {path}.")
    lines = path.read_bytes().splitlines()
    if not lines:
        raise ValueError(f"{path} is empty.")
    examples = []
    for number, raw in enumerate(lines, start=1):
        try:
            examples.append(Example(raw.decode("utf-8"), None, f"{path}:{number}"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason}).") from None
    return Task(path.stem, _not_blank(tuple(examples)))


def bundled_examples(name: str) -> Task:
    """The example texts that ship with a bundled pair."""
    root = Path(str(importlib.resources.files("specdec")))
    return dataclasses.replace(text_file(root / "bundled" / name / "examples.txt"), name=name)


def pairs_file(name: str, directory: str | os.PathLike, split: str) -> Task:
    """``<directory>/<split>.tsv``: a line is ``input<TAB>reference``.

    Raises:
      FileNotFoundError, ValueError: see :func:`specdec.data.text.read_pairs`.
    """
    path = Path(directory) / f"{split}.tsv"
    pairs = enumerate(read_pairs(path), start=1)
    return Task(
        f"{name}/{split}", tuple(Example(a, b, f"{path}:{number}") for number, (a, b) in pairs)
    )


def _not_blank(examples: tuple[Example, ...]) -> tuple[Example, ...]:
    for example in examples:
        if not example.input.strip():
            raise ValueError(f"{example.origin} is empty.")
    return examples
