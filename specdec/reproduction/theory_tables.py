"""The paper's Table 1 and Table 4's expected speedups, each number beside what theory gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec.core import theory
from specdec.measure.tables import markdown
from specdec.reproduction import paper

HALF_DIGIT = 0.005  # What two printed digits of alpha and c leave open.


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A printed number and its calculation.

    Attributes:
      setting: what it is of, in words.
      quantity: "operations" or "speed", as factors.
      digits: how many the paper prints behind the point.
      low, high: the calculation over all inputs that round to the printed ones; equal to ``calc``
        where the inputs are exact.
    """

    setting: str
    quantity: str
    paper: float
    calc: float
    digits: int
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """The calculation, rounded, is the printed number."""
        return round(self.calc, self.digits) == self.paper

    @property
    def reason(self) -> str:
        """Why it does not agree; empty where it does."""
        if self.agrees:
            return ""
        span = f"{self.low:.{self.digits + 2}f} to {self.high:.{self.digits + 2}f}"
        if round(self.low, self.digits) <= self.paper <= round(self.high, self.digits):
            return f"rounding: alpha and c that print as these give {span}"
        return f"unexplained: alpha and c that print as these give only {span}"


def table_1() -> list[Comparison]:
    """Table 1: operations (Theorem 3.11) and speed (Theorem 3.8) at c = c^ = 0."""
    found = []
    for row in paper.TABLE_1:
        setting = f"α = {row.alpha:g}, γ = {row.gamma}"
        for quantity, printed, calc in (
            ("operations", row.operations, theory.operations_factor(row.alpha, row.gamma, 0.0)),
            ("speed", row.speed, theory.speedup(row.alpha, row.gamma, 0.0)),
        ):
            found.append(Comparison(setting, quantity, printed, calc, 2, calc, calc))
    return found


def table_4() -> list[Comparison]:
    """Table 4's expected column by Theorem 3.8."""
    return [
        Comparison(
            setting=f"{row.task}, {row.draft}, T = {row.temperature:g}, γ = {row.gamma}, "
            f"α = {row.alpha:.2f}, c = {row.cost_ratio:.2f}",
            quantity="speed",
            paper=row.expected,
            calc=theory.speedup(row.alpha, row.gamma, row.cost_ratio),
            digits=1,
            low=theory.speedup(row.alpha - HALF_DIGIT, row.gamma, row.cost_ratio + HALF_DIGIT),
            high=theory.speedup(row.alpha + HALF_DIGIT, row.gamma, row.cost_ratio - HALF_DIGIT),
        )
        for row in paper.TABLE_4
    ]


def disagreements(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for each number that theory does not give, with the reason."""
    return [
        f"{c.setting}: the paper prints {c.paper:.{c.digits}f}, "
        f"theory gives {c.calc:.{c.digits + 2}f} ({c.reason})."
        for c in comparisons
        if not c.agrees
    ]


def table(comparisons: Sequence[Comparison]) -> str:
    """A line for each number, and the disagreements below it."""
    rows = [
        [
            c.setting, c.quantity, f"{c.paper:.{c.digits}f}",
            # Two digits more than printed: with one, 2.347 would be 2.35 and look like 2.4.
            f"{c.calc:.{c.digits + 2}f}", "yes" if c.agrees else "**no**",
        ]
        for c in comparisons
    ]  # fmt: skip
    lines = markdown(("", "factor of", "paper", "calc", "agrees"), rows)
    found = disagreements(comparisons)
    return "\n".join([lines, *(["", *(f"- {line}" for line in found)] if found else [])]) + "\n"
