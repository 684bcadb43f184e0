"""How good outputs are, by sacreBLEU's measures."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu


def quality(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU and chrF in 0..100, one reference an output."""
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }
