"""The numbers that Leviathan, Kalman and Matias (2023, arXiv 2211.17192v2) print.

Beside them: what this project measures and computes. Factors are over plain decoding.
"""

from __future__ import annotations

import dataclasses

# Alpha, gamma, and the operations and speed for c = c^ = 0, as factors.
TABLE_1 = (
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
)

# Target, draft, and alpha at temperature 0 and 1.
TABLE_3 = (
    ("GPT-like (97M)", "unigram", 0.03, 0.03),
    ("GPT-like (97M)", "bigram", 0.05, 0.05),
    ("GPT-like (97M)", "GPT-like (6M)", 0.88, 0.89),
    ("T5-XXL (EnDe)", "unigram", 0.08, 0.07),
    ("T5-XXL (EnDe)", "bigram", 0.20, 0.19),
    ("T5-XXL (EnDe)", "T5-small", 0.75, 0.62),
    ("T5-XXL (EnDe)", "T5-base", 0.80, 0.68),
    ("T5-XXL (EnDe)", "T5-large", 0.82, 0.71),
    ("T5-XXL (CNNDM)", "unigram", 0.13, 0.08),
    ("T5-XXL (CNNDM)", "bigram", 0.23, 0.16),
    ("T5-XXL (CNNDM)", "T5-small", 0.65, 0.53),
    ("T5-XXL (CNNDM)", "T5-base", 0.73, 0.55),
    ("T5-XXL (CNNDM)", "T5-large", 0.74, 0.56),
    ("LaMDA (137B)", "LaMDA (100M)", 0.61, 0.57),
    ("LaMDA (137B)", "LaMDA (2B)", 0.71, 0.71),
    ("LaMDA (137B)", "LaMDA (8B)", 0.75, 0.74),
)

LENIENCES = (1.0, 0.5, 0.3, 0.1)
# Alpha for each of LENIENCES: EnDe, T5-XXL, temperature 1.
TABLE_5 = {
    "unigram": (0.07, 0.10, 0.11, 0.16),
    "bigram": (0.19, 0.23, 0.25, 0.32),
    "T5-small": (0.62, 0.71, 0.76, 0.84),
    "T5-base": (0.68, 0.80, 0.83, 0.90),
}

# c against T5-XXL (appendix A.3).
COST_RATIO = {"T5-small": 0.02, "T5-base": 0.04, "T5-large": 0.11}


@dataclasses.dataclass(frozen=True)
class Table4Row:
    """A pair with T5-XXL on a task; ``empirical`` is on a TPU-v4, batch size 1."""

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    expected: float
    empirical: float

    @property
    def cost_ratio(self) -> float:
        """c of the draft."""
        return COST_RATIO[self.draft]


TABLE_4 = (
    Table4Row("EnDe", "T5-small", 0, 7, 0.75, 3.2, 3.4),
    Table4Row("EnDe", "T5-base", 0, 7, 0.80, 3.3, 2.8),
    Table4Row("EnDe", "T5-large", 0, 7, 0.82, 2.5, 1.7),
    Table4Row("EnDe", "T5-small", 1, 7, 0.62, 2.3, 2.6),
    Table4Row("EnDe", "T5-base", 1, 5, 0.68, 2.4, 2.4),
    Table4Row("EnDe", "T5-large", 1, 3, 0.71, 2.0, 1.4),
    Table4Row("CNNDM", "T5-small", 0, 5, 0.65, 2.4, 3.1),
    Table4Row("CNNDM", "T5-base", 0, 5, 0.73, 2.6, 3.0),
    Table4Row("CNNDM", "T5-large", 0, 3, 0.74, 2.0, 2.2),
    Table4Row("CNNDM", "T5-small", 1, 5, 0.53, 1.9, 2.3),
    Table4Row("CNNDM", "T5-base", 1, 3, 0.55, 1.8, 2.2),
    Table4Row("CNNDM", "T5-large", 1, 3, 0.56, 1.6, 1.7),
)

FIGURE_GAMMAS = (1, 3, 5, 7, 10)  # Of Figures 2 and 4.
FIGURE_3_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# For each c the optimal gamma at FIGURE_3_ALPHAS.
FIGURE_3 = {
    0.01: (5, 7, 9, 14, 24, 40),
    0.02: (4, 6, 8, 11, 19, 31),
    0.05: (3, 4, 6, 8, 13, 21),
    0.1: (2, 3, 4, 6, 10, 15),
}

# Where the paper disagrees with itself, or a number does not mean what it seems to.
CONTRADICTIONS = (
    "Section 3.3 says that c was always below 0.05, but Table 4 has c = 0.11 for T5-large.",
    "Three of Table 4's expected speedups at temperature 1 (EnDe with T5-base 2.4 and T5-large "
    "2.0, CNNDM with T5-large 1.6) are above Theorem 3.8 at the printed alpha, gamma and c (2.347, "
    "1.934 and 1.541); the rounding of alpha and c can explain it.",
    "Eight of Table 4's twelve empirical speedups exceed the expected ones beside them.",
    "Appendix A.5's speedups with lenience at temperature 1 (2.5, 3.1, 3.6 and 5) exceed "
    "Theorem 3.8 at every gamma for T5-small's alphas in Table 5 and c = 0.015 "
    "(at most 2.33, 2.94, 3.45 and 4.79).",
    "Appendix A.5 prints the lenient argmax rule as p(x) <= l max p, but only p(x) >= l max p "
    "is the exact rule at l = 1.",
    "Table 3's alphas for LaMDA are of samples after a top-40 filter, not of plain sampling.",
)
