"""New inputs that read like a data set's own.

A draft will have to guess outputs for texts that the target does not remember from its training.
Such outputs are learned from new texts.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Sequence

import numpy as np

_TRIES = 20  # For each text that is wanted.


@dataclasses.dataclass(frozen=True)
class Recombination:
    """The beginning of one text and the end of another, which share two neighbouring words.

    Attributes:
      count: how many texts to make.
      words: fewest and most words that each may have.
      seed: of the choices.
    """

    count: int
    words: tuple[int, int] = (3, 30)
    seed: int = 0

    def __call__(self, texts: Sequence[str], known: Collection[str] = ()) -> list[str]:
        """Distinct texts that are neither among ``texts`` nor ``known``.

        Raises:
          ValueError: the texts have too little in common to make so many.
        """
        random = np.random.default_rng(self.seed)
        split = [text.split() for text in texts]
        indices = collections.defaultdict(list)
        for text, words in enumerate(split):
            for at, pair in enumerate(itertools.pairwise(words)):
                indices[pair].append((text, at))
        sources = [words for words in split if len(words) > 1]
        refused, made = {*texts, *known}, {}
        for _ in range(_TRIES * self.count * bool(sources)):
            if len(made) == self.count:
                break
            words = sources[random.integers(len(sources))]
            cut = random.integers(len(words) - 1)
            meeting = indices[words[cut], words[cut + 1]]
            other, at = meeting[random.integers(len(meeting))]
            new = words[:cut] + split[other][at:]
            text = " ".join(new)
            if self.words[0] <= len(new) <= self.words[1] and text not in refused:
                made[text] = None
        if len(made) < self.count:
            raise ValueError(
                f"{len(made)} new texts were made in {_TRIES * self.count} tries, {self.count} are "
                "wanted: lower the count or give more texts."
            )
        return list(made)
