"""Quality of outputs: scores of a whole corpus, from its rows one after another.

Scorers take rows, an output and its reference each, and give scores by name, None without a row.
"""

from __future__ import annotations

import statistics

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.helpers import extract_all_char_ngrams

from specdec.data.tasks import Metrics

_CHARS, _BETA = 6, 2


class Quality:
    """Corpus BLEU and chrF in 0..100, as sacreBLEU has them.

    Both are functions of counts summed over the rows, and no more is kept: sacreBLEU's own corpus
    functions hold the n-grams of every reference, some 16 kB a row.

    Source of chrF: Popović 2015, with n-grams of 1 to 6 characters, white space left out, and
    beta = 2. The mean is over the lengths of which both sides have n-grams.
    """

    def __init__(self):
        # Of one sentence it has the counts too, and warns unless its order is given.
        self._bleu = BLEU(effective_order=True)
        self._num_rows = 0
        self._matches, self._ngrams, self._lengths = np.zeros(4, int), np.zeros(4, int), (0, 0)
        self._chrf = np.zeros((_CHARS, 3), int)

    def add(self, output: str, reference: str) -> None:
        self._num_rows += 1
        score = self._bleu.sentence_score(output, [reference])
        self._matches += score.counts
        self._ngrams += score.totals
        self._lengths = self._lengths[0] + score.sys_len, self._lengths[1] + score.ref_len
        sides = (extract_all_char_ngrams(text, _CHARS) for text in (output, reference))
        for sums, ours, theirs in zip(self._chrf, *sides, strict=True):
            # An output's n-grams count only where its reference has any of that length.
            sums += ours.total() * bool(theirs), theirs.total(), (ours & theirs).total()

    def scores(self) -> dict[str, float] | None:
        if not self._num_rows:
            return None
        counts = self._matches.tolist(), self._ngrams.tolist()
        bleu = BLEU.compute_bleu(*counts, *self._lengths, smooth_method="exp")
        return {"bleu": bleu.score, "chrf": _f_score(self._chrf.tolist())}


def _f_score(counts: list[list[int]]) -> float:
    """chrF of (output's, reference's, common) n-grams by their length."""
    both = [count for count in counts if count[0] and count[1]]
    if not both:
        return 0.0
    precision = statistics.fmean(common / ours for ours, _, common in both)
    recall = statistics.fmean(common / theirs for _, theirs, common in both)
    weighted = _BETA**2 * precision + recall
    return 100 * (1 + _BETA**2) * precision * recall / weighted if weighted else 0.0


class TaskQuality:
    """A task's own metrics, which take all rows at once."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._outputs: list[str] = []
        self._references: list[str] = []

    def add(self, output: str, reference: str) -> None:
        self._outputs.append(output)
        self._references.append(reference)

    def scores(self) -> dict[str, float] | None:
        return self._metrics(self._outputs, self._references) if self._outputs else None
