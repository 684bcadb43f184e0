"""The tables of a reproduction, in Markdown, each beside the paper's own rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from specdec.core import theory
from specdec.measure.tables import table
from specdec.reproduce import paper
from specdec.reproduce.pages.tables import Part, grid, joined, leaves, table_of

Content = Mapping[str, Any]
HALF_DIGIT = 0.005  # The error of two printed digits of alpha and c.
_DECODES = "table_2/*/*/*"
# Measurements along the targets' own texts, by study, temperature and draft.
_ALPHAS = "alpha/*/drafts/{drafter}"


def _decodes(*contents: Content) -> Iterator[Content]:
    """Each decode, with Corollary 3.6's alpha, along the target's own texts."""
    pair = itemgetter("name", "drafter", "temperature")
    for content in contents:
        alphas = {pair(a): a["alpha"] for a in leaves(content, "studies/*/" + _ALPHAS)}
        for row in leaves(content, "studies/*/" + _DECODES):
            if not row["tree"]:  # Which the paper has not, but older results.
                yield row | {"alpha": alphas.get(pair(row))}


def _fastest(*contents: Content) -> Iterator[Content]:
    """The decode with the fastest decoder for each task and temperature."""
    found: dict[tuple[str, float], Content] = {}
    for row in _decodes(*contents):
        key = row["name"], row["temperature"]
        speed = row["measured_speedup_decoder"]
        if key not in found or speed > found[key]["measured_speedup_decoder"]:
            found[key] = row
    yield from found.values()


def _lenient(content: Content) -> Iterator[Content]:
    """Alphas at the temperature of Table 5, by lenience."""
    for row in leaves(content, "studies/*/alpha/t1/drafts/{drafter}"):
        for lenience, found in row["lenience"].items():
            yield {**row, **found, "lenience": float(lenience)}


def _drafts(*contents: Content) -> Iterator[Content]:
    """Each draft's alphas at temperatures 0 and 1."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for content in contents:
        for row in leaves(content, "studies/*/" + _ALPHAS):
            both = found.setdefault((row["name"], row["drafter"]), {**row, "t0": None, "t1": None})
            both[f"t{row['temperature']:g}"] = row
    yield from found.values()


_TASK, _TEMPERATURE = ("task", "{name}"), ("T", "{temperature:g}")
_PAIR = (_TASK, ("draft", "{drafter}"), _TEMPERATURE)
_EXAMINED = ("accepted / examined", "{acceptance_rate:.2f}")
_EMITTED = ("tokens / call", "{block_efficiency:.2f}")
_SHAPE = (("γ", "{gamma}"), ("α", "{alpha:.2f}"))
_COSTS = (("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"))
_PREDICTED = (("Thm 3.8", "{predicted_speedup_thm38:.2f}"), ("with v", "{predicted_speedup:.2f}"))
_DECODER = ("decoder", "**{measured_speedup_decoder:.2f}**")
_RANGE = "{%[low]:.2f} to {%[high]:.2f}".replace("%", "spread[measured_speedup_decoder]")
# Predicted beside measured speedups, of the decoder alone but for "whole".
TABLE_2 = table_of(_decodes, [
    *_PAIR, *_SHAPE, _EXAMINED, _EMITTED, *_COSTS, *_PREDICTED,
    ("counted", "{predicted_speedup_counted:.2f}"), _DECODER, ("(range)", _RANGE),
    ("whole", "{measured_speedup:.2f}"), ("ms / token", "{ms_per_token[speculative]:.3f}"),
    ("plain", "{ms_per_token[autoregressive]:.3f}"),
], numbers=False, missing="")  # fmt: skip
FASTEST = table_of(_fastest, [
    *_PAIR, *_SHAPE, _EMITTED, *_COSTS, *_PREDICTED, _DECODER,
    ("whole", "{measured_speedup:.2f}"),
], numbers=False, missing="")  # fmt: skip
TABLE_3 = table_of(_drafts, [
    _TASK, ("draft", "{drafter}"), ("α, T = 0", "{t0[alpha]:.3f}"),
    ("α, T = 1", "{t1[alpha]:.3f}"),
], numbers=False)  # fmt: skip
# Alpha, and the distance from the target's distribution.
TABLE_5 = table_of(_lenient, [
    *_PAIR, ("lenience", "{lenience:g}"), ("α", "{alpha:.2f}"),
    ("distance from p a token", "{total_variation:.3f}"),
], numbers=False)  # fmt: skip
# As printed.
PAPER_TABLE_2 = table([
    ("task", "{task}"), ("draft", "{draft}"), _TEMPERATURE, ("γ", "{gamma}"),
    ("α", "{alpha:.2f}"), ("c", "{cost_ratio:.2f}"), ("expected", "{expected:.1f}"),
    ("empirical", "{empirical:.1f}"),
], [vars(row) | {"cost_ratio": row.cost_ratio} for row in paper.TABLE_4])  # fmt: skip
PAPER_TABLE_3 = grid(
    ("target", "draft", "α, T = 0", "α, T = 1"),
    [(target, draft, f"{a:.2f}", f"{b:.2f}") for target, draft, a, b in paper.TABLE_3],
    numbers=False,
)
PAPER_TABLE_5 = grid(
    ("draft", *(f"l = {x:g}" for x in paper.LENIENCES)),
    [(draft, *(f"{a:.2f}" for a in alphas)) for draft, alphas in paper.TABLE_5.items()],
    numbers=False,
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A printed number, and the factor of "operations" or "speed" that theory gives for it."""

    setting: str
    quantity: str
    paper: float
    calc: float
    digits: int  # How many the paper prints behind the point.
    # The calculation over all inputs that round to the printed ones.
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """The calculation, rounded, is the printed number."""
        return round(self.calc, self.digits) == self.paper

    def shown(self, value: float) -> str:
        """Value with two digits more than printed: with one, 2.347 is 2.35 and looks like 2.4."""
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
    formulas = {"operations": theory.operations_factor, "speed": theory.speedup}
    return [
        Comparison(f"α = {alpha:g}, γ = {gamma}", quantity, factor, calc, 2, calc, calc)
        for alpha, gamma, *printed in paper.TABLE_1
        for (quantity, formula), factor in zip(formulas.items(), printed, strict=True)
        for calc in [formula(alpha, gamma, 0.0)]
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
    form = "{0.setting}: the paper prints {0.paper:.{0.digits}f}, theory gives {1} ({0.reason})."
    return [form.format(c, c.shown(c.calc)) for c in comparisons if not c.agrees]


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """A line for each number, and the disagreements below it."""
    columns = [
        ("", lambda c: c.setting), ("factor of", lambda c: c.quantity),
        ("paper", lambda c: f"{c.paper:.{c.digits}f}"), ("calc", lambda c: c.shown(c.calc)),
        ("agrees", lambda c: "yes" if c.agrees else "**no**"),
    ]  # fmt: skip
    notes = [f"- {line}" for line in disagreements(comparisons)]
    return "\n".join([table(columns, comparisons), *(["", *notes] if notes else [])]) + "\n"


_OF_THE_PAPER = "## Where the paper contradicts itself\n\n" + "\n".join(
    f"- {sentence}" for sentence in paper.CONTRADICTIONS
)
TABLE_1 = "## Table 1: operations and speed\n\n" + comparison_table(table_1())
TABLE_4 = "## Table 4: expected speedups\n\n" + comparison_table(table_4())
# All of a reproduction.
PARTS: Sequence[Part] = [
    TABLE_1,
    "## Table 2: measured speedups", TABLE_2,
    "The paper's rows (T5-XXL on a TPU-v4):", PAPER_TABLE_2,
    TABLE_4,
    "## Table 5: lenience", TABLE_5,
    "The paper's (EnDe, T5-XXL, temperature 1): alpha", PAPER_TABLE_5,
    "## Table 3: alpha along the target's own texts", TABLE_3, "The paper's:", PAPER_TABLE_3,
    _OF_THE_PAPER,
]  # fmt: skip
# The page of several reproductions.
SHORT: Sequence[Part] = [
    TABLE_1,
    "## Table 2: measured speedups", FASTEST,
    "## Table 3: alpha by target and draft", TABLE_3, "The paper's:", PAPER_TABLE_3,
    TABLE_4, _OF_THE_PAPER,
]  # fmt: skip


def page(content: Content) -> str:
    """All tables of a ``summary.json``; see :class:`.runs.reproduce.Reproduction`."""
    return joined(PARTS, content) + "\n"
