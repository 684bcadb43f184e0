"""A speculative run that others have timed, in their terms and in ours."""

from __future__ import annotations

import dataclasses
import math

from specdec.arguments import real, whole
from specdec.core.theory import alpha_of_blocks, block_speedup, speedup


@dataclasses.dataclass(frozen=True)
class ReportedRun:
    """The figures of such a run, which ``--dry_run`` compares with a plan.

    Attributes:
      source: who reports it.
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
