"""Several data sets as one, each example marked with its task's prefix (Raffel et al. 2020)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from specdec.data.tasks import evenly
from specdec.data.text import read_pairs, sentences_of, write_pairs

Pairs = list[tuple[str, str]]
VALIDATION_EXAMPLES = 500  # At most so many of a part, evenly spread.
WORDS = range(8, 46)  # Of a sentence to restore.
CORRUPT = 0.15  # Of its words.


@dataclasses.dataclass(frozen=True)
class PairsPart:
    """``<directory>/<split>.tsv``, every input with ``prefix`` before it."""

    prefix: str
    directory: str
    repeat: int = 1  # How often each training example occurs.

    def pairs(self, data: Path, split: str, random: np.random.Generator) -> Pairs:
        """Pairs (input, target) for "train" or "validation"; the paths are in ``data``."""
        del random
        rows = read_pairs(data / self.directory / f"{split}.tsv")
        found = [(self.prefix + source, target) for source, target in rows]
        if split == "validation":
            return list(evenly(found, VALIDATION_EXAMPLES))
        return found * self.repeat


@dataclasses.dataclass(frozen=True)
class RestorationPart:
    """Sentences to restore from a corrupted copy: they teach a small model to copy.

    A denoising objective in the manner of BART's token masking and deletion (Lewis et al. 2020),
    with words instead of masks: of each sentence, 15 % of the words are dropped or replaced by
    others of the same sentence. For training only.
    """

    prefix: str
    texts: Sequence[str] = ()  # Plain text files, cut into sentences.
    tables: Sequence[str] = ()  # ``.tsv`` files of pairs, of which the inputs are cut.

    def pairs(self, data: Path, split: str, random: np.random.Generator) -> Pairs:
        """As :meth:`PairsPart.pairs`."""
        if split != "train":
            return []
        found = []
        for sentence in self._sentences(data):
            words = sentence.split()
            if len(words) not in WORDS:
                continue
            fate = random.random(len(words))
            others = random.integers(len(words), size=len(words))
            kept = [
                words[other] if chance < CORRUPT / 2 else word
                for word, chance, other in zip(words, fate, others, strict=True)
                if not CORRUPT / 2 <= chance < CORRUPT
            ]
            if kept:
                found.append((self.prefix + " ".join(kept), " ".join(words)))
        return found

    def _sentences(self, data: Path) -> Iterable[str]:
        for path in self.texts:
            for paragraph in (data / path).read_text(encoding="utf-8").split("\n\n"):
                yield from sentences_of(paragraph)
        for path in self.tables:
            for source, _ in read_pairs(data / path):
                yield from sentences_of(source)


def mixture(
    directory: str | os.PathLike, *, data: str | os.PathLike,
    parts: Sequence[PairsPart | RestorationPart], seed: int = 0,
) -> None:  # fmt: skip
    """Writes ``train.tsv`` and ``validation.tsv`` with the examples of all parts, in their order.

    Raises:
      FileNotFoundError, ValueError: a part's file is missing or malformed.
    """
    for split in ("train", "validation"):
        random = np.random.default_rng(seed)
        pairs = [pair for part in parts for pair in part.pairs(Path(data), split, random)]
        write_pairs(Path(directory) / f"{split}.tsv", pairs)
