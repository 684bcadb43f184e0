"""The paper's Table 1 and Table 4's expected speedups, each number beside what theory gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec.core import theory
from specdec.measure import tables
from specdec.reproduction import paper

HALF_DIGIT = 0.005  # What two printed digits of alpha and c leave open.


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A printed number and its calculation.

    Attributes:
      setting: what it is of, in words.
      quantity: "operations" or "speed", as factors.
      digits: how many the paper prints behind the point.
      low, high: the calculation over all inputs that round to the printed ones.
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

    def shown(self, value: float) -> str:
        """With two digits more than printed: with one, 2.347 would be 2.35 and look like 2.4."""
        return f"{value:.{self.digits + 2}f}"

    @property
    def reason(self) -> str:
        """Why it does not agree; empty where it does."""
        if self.agrees:
            return ""
        explained = round(self.low, self.digits) <= self.paper <= round(self.high, self.digits)
        why, only = ("rounding", "") if explained else ("unexplained", "only ")
        span = f"{self.shown(self.low)} to {self.shown(self.high)}"
        return f"{why}: alpha and c that print as these give {only}{span}"


def table_1() -> list[Comparison]:
    """Table 1: operations (Theorem 3.11) and speed (Theorem 3.8) at c = c^ = 0."""
    laws = {"operations": theory.operations_factor, "speed": theory.speedup}
    return [
        Comparison(f"α = {alpha:g}, γ = {gamma}", quantity, factor, calc, 2, calc, calc)
        for alpha, gamma, *printed in paper.TABLE_1
        for (quantity, law), factor in zip(laws.items(), printed, strict=True)
        for calc in [law(alpha, gamma, 0.0)]
    ]


def table_4() -> list[Comparison]:
    """Table 4's expected column by Theorem 3.8."""
    found = []
    for row in paper.TABLE_4:
        low, calc, high = (
            theory.speedup(row.alpha + off, row.gamma, row.cost_ratio - off)
            for off in (-HALF_DIGIT, 0, HALF_DIGIT)
        )
        setting = f"{row.task}, {row.draft}, T = {row.temperature:g}, γ = {row.gamma}, "
        setting += f"α = {row.alpha:.2f}, c = {row.cost_ratio:.2f}"
        found.append(Comparison(setting, "speed", row.expected, calc, 1, low, high))
    return found


def disagreements(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for each number that theory does not give, with the reason."""
    return [
        f"{c.setting}: the paper prints {c.paper:.{c.digits}f}, "
        f"theory gives {c.shown(c.calc)} ({c.reason})."
        for c in comparisons
        if not c.agrees
    ]


def table(comparisons: Sequence[Comparison]) -> str:
    """A line for each number, and the disagreements below it."""
    columns = [
        ("", lambda c: c.setting), ("factor of", lambda c: c.quantity),
        ("paper", lambda c: f"{c.paper:.{c.digits}f}"), ("calc", lambda c: c.shown(c.calc)),
        ("agrees", lambda c: "yes" if c.agrees else "**no**"),
    ]  # fmt: skip
    notes = [f"- {line}" for line in disagreements(comparisons)]
    return "\n".join([tables.table(columns, comparisons), *(["", *notes] if notes else [])]) + "\n"
