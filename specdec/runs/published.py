"""Speculative runs that others published, with which ``--dry_run`` compares a plan."""

from __future__ import annotations

import dataclasses
import math

from specdec.core.arguments import real, whole
from specdec.core.theory import alpha_of_blocks, block_speedup, speedup

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


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """A run that others have timed; ``--dry_run`` compares it with a plan, in their terms and ours.

    Attributes:
      source: where it was reported.
      t_target_ms, t_draft_ms: time of a step of the target and of the draft, in ms.
      gamma: guesses a block.
      accepted_share: r', the tokens that a block emits on average over gamma + 1.
      measured_speedup: over plain decoding.

    Raises:
      ValueError: a figure that is not set, or out of its range.
    """

    source: str
    t_target_ms: float
    t_draft_ms: float
    gamma: int
    accepted_share: float
    measured_speedup: float

    def __post_init__(self):
        whole("ReportedRun.gamma", self.gamma, 1)
        for name in ("t_target_ms", "t_draft_ms", "measured_speedup"):
            value = getattr(self, name)
            real(f"ReportedRun.{name}", value, "a positive number", math.ulp(0.0))
        least, meaning = 1 / (self.gamma + 1), "in [1 / (gamma + 1), 1]"
        real("ReportedRun.accepted_share", self.accepted_share, meaning, least, 1)

    @property
    def block_efficiency(self) -> float:
        """Tokens a block, r' (gamma + 1)."""
        return self.accepted_share * (self.gamma + 1)

    @property
    def predicted_speedup(self) -> float:
        """r' (gamma + 1) t_target / (gamma t_draft + t_target)."""
        block = self.gamma * self.t_draft_ms + self.t_target_ms
        return self.block_efficiency * self.t_target_ms / block

    @property
    def cost_ratio(self) -> float:
        """c."""
        return self.t_draft_ms / self.t_target_ms

    @property
    def alpha(self) -> float:
        """That with which Equation 1 gives the block efficiency."""
        return alpha_of_blocks(self.block_efficiency, self.gamma)

    @property
    def verify_ratio(self) -> float:
        """v, with which blocks of this efficiency and c are as fast as was measured."""
        return self.block_efficiency / self.measured_speedup - self.gamma * self.cost_ratio

    def lines(self, plans: dict[str, tuple[float, float]]) -> list[str]:
        """What is reported, in words.

        Args:
          plans: c and v of a plan, by where they are from.
        """
        tokens, gamma, c = self.block_efficiency, self.gamma, self.cost_ratio
        return [
            f"Reported by {self.source}:",
            f"  t_target {self.t_target_ms:g} ms, t_draft {self.t_draft_ms:g} ms, r' = "
            f"{self.accepted_share:g}, gamma {gamma}: r' (gamma + 1) t_target / (gamma t_draft + "
            f"t_target) = {self.predicted_speedup:.2f} times faster predicted, "
            f"{self.measured_speedup:g} measured",
            f"  here: block efficiency r' (gamma + 1) = {tokens:.4f}, c = t_draft / t_target = "
            f"{c:.3f}; by Equation 1 alpha = {self.alpha:.3f}",
            f"  by Theorem 3.8 (v = 1): {speedup(self.alpha, gamma, c):.2f}; what was measured "
            f"there is that of v = {self.verify_ratio:.2f}",
            *(
                f"  at c = {c:.3f}, v = {v:.3f}, {where}: {block_speedup(tokens, gamma, c, v):.2f}"
                for where, (c, v) in plans.items()
            ),
        ]
