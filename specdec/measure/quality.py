"""How good outputs are: scores of a whole corpus, from its rows one after another."""

from __future__ import annotations

from typing import Protocol

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from specdec.data.tasks import Metrics


class Scorer(Protocol):
    """Scores outputs against one reference each."""

    def add(self, output: str, reference: str) -> None:
        """Takes a row."""
        ...

    def scores(self) -> dict[str, float] | None:
        """By name; None if there was no row."""
        ...


class Quality:
    """Corpus BLEU and chrF in 0..100, by sacreBLEU.

    Both are functions of counts summed over the rows, and no more is kept: sacreBLEU's own corpus
    functions hold the n-grams of every reference, some 16 kB a row.
    """

    def __init__(self):
        self._metrics = {"bleu": BLEU(), "chrf": CHRF()}
        self._sums: dict[str, list[int]] = {}

    def add(self, output: str, reference: str) -> None:
        """See :class:`Scorer`."""
        for name, metric in self._metrics.items():
            (counts,) = metric._extract_corpus_statistics([output], [[reference]])
            sums = self._sums.setdefault(name, [0] * len(counts))
            self._sums[name] = [a + b for a, b in zip(sums, counts, strict=True)]

    def scores(self) -> dict[str, float] | None:
        """See :class:`Scorer`."""
        if not self._sums:
            return None
        return {
            name: metric._compute_score_from_stats(self._sums[name]).score
            for name, metric in self._metrics.items()
        }


class TaskQuality:
    """A task's own metrics, which take all rows at once."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._outputs: list[str] = []
        self._references: list[str] = []

    def add(self, output: str, reference: str) -> None:
        """See :class:`Scorer`."""
        self._outputs.append(output)
        self._references.append(reference)

    def scores(self) -> dict[str, float] | None:
        """See :class:`Scorer`."""
        return self._metrics(self._outputs, self._references) if self._outputs else None
