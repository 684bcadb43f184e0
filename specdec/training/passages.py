"""Passages of books, one a line: what a model of plain text is trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from specdec.core.files import write_text
from specdec.core.progress import say
from specdec.data.text import existing_file, sentences_of

MOST_WORDS = 120  # Of a passage.
_CHUNK = 50  # Consecutive sentences that fall into one split together.
_EVERY = 40  # One such chunk of so many is held out for validation, and one for the test.


def passages(
    directory: str | os.PathLike, *, data: str | os.PathLike, texts: Sequence[str],
    lengths: Sequence[float] = (1.0,),
) -> None:  # fmt: skip
    """Writes ``train.txt``, ``validation.txt`` and ``test.txt``.

    Paragraphs are apart by a blank line; headings (``#``) and rules (``---``) are left out.

    Args:
      texts: plain text or Markdown files in ``data``.
      lengths: i: the share of passages that have i + 1 consecutive sentences, or as many of these
        as have 120 words together. Longer sentences are left out and counted.

    Raises:
      FileNotFoundError, ValueError: a text is missing or empty, or shares are invalid.
    """
    shares = np.asarray(lengths, float)
    if not shares.size or (shares < 0).any() or not shares.sum():
        raise ValueError(f"lengths must be shares, got {lengths}.")
    random = np.random.default_rng(0)
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    left_out = 0
    for text in texts:
        sentences = list(_sentences(existing_file(Path(data) / text)))
        for number in range(0, len(sentences), _CHUNK):
            index = number // _CHUNK % _EVERY
            split = {_EVERY // 2: "validation", _EVERY - 1: "test"}.get(index, "train")
            chunk = sentences[number : number + _CHUNK]
            while chunk:
                count = 1 + random.choice(len(shares), p=shares / shares.sum())
                words = np.cumsum([len(sentence.split()) for sentence in chunk[:count]])
                fitting = int((words <= MOST_WORDS).sum())
                left_out += not fitting
                if fitting:
                    splits[split].append(" ".join(chunk[:fitting]))
                chunk = chunk[max(1, fitting) :]
    for split, found in splits.items():
        lines = [found[i] + "\n" for i in random.permutation(len(found))]
        write_text(Path(directory) / f"{split}.txt", "".join(lines))
    sizes = ", ".join(f"{len(found)} {split}" for split, found in splits.items())
    say(f"Passages: {sizes}; {left_out} sentences of more than {MOST_WORDS} words left out.")


def _sentences(path: Path) -> Iterator[str]:
    for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
        if not paragraph.lstrip().startswith(("#", "---")):
            yield from sentences_of(paragraph)
