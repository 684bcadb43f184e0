"""The tables of a reproduction, in Markdown, each beside the paper's own rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from specdec.core import theory
from specdec.measure.tables import markdown, table
from specdec.studies import paper

Content = Mapping[str, Any]
HALF_DIGIT = 0.005  # What two printed digits of alpha and c leave open.


def page(content: Content) -> str:
    """All tables of a ``summary.json``; see :class:`.runs.reproduce.Reproduction`."""
    studies = list(content["studies"].values())
    parts = [
        "## Table 1: operations and speed", comparison_table(table_1()),
        "## Table 2: measured speedups", table_2(studies),
        "The paper's rows (T5-XXL on a TPU-v4):", paper_table_2(),
        "Quality of the targets' outputs, which lossless decoding does not change:",
        quality_table(studies),
        "## Table 4: expected speedups", comparison_table(table_4()),
        "## Table 5: lenience", table_5(studies),
        "The paper's (EnDe, T5-XXL, temperature 1): alpha", paper_table_5(),
        "## Alpha along the target's own texts", alpha_table(studies),
        "## Acceptances are not independent", efficiency_table(studies),
        "## Block verification", block_table(studies),
        "## Where the paper contradicts itself",
        "\n".join(f"- {sentence}" for sentence in paper.CONTRADICTIONS),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _number(name: str, digits: int = 2) -> Callable[[Content], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:.{digits}f}"


def _scores(row: Content) -> str:
    return ", ".join(f"{name} {score:.1f}" for name, score in (row["quality"] or {}).items())


def _guesses(row: Content) -> str:
    return row["tree"] or str(row["gamma"])


# What is known of single guesses, which a tree's nodes are not.
_OF_CHAINS = ("alpha", "predicted_speedup_thm38", "predicted_speedup")


def _leaves(study: Content, kind: str, depth: int = 3) -> list[dict[str, Any]]:
    """What stands ``depth`` levels down in a study's part, in order, each with its "path"."""
    found: list[tuple[tuple[str, ...], Content]] = [((), study.get(kind, {}))]
    for _ in range(depth):
        found = [((*path, key), below) for path, each in found for key, below in each.items()]
    return [{"name": study["name"], "path": path, **leaf} for path, leaf in found]


def _alphas(studies: Sequence[Content]) -> Iterator[Content]:
    """What was measured along the targets' own texts, by study, temperature and draft."""
    for study in studies:
        for found in study["alpha"].values():
            where = {"name": study["name"], "temperature": found["temperature"]}
            yield from ({**where, "drafter": key, **a} for key, a in found["drafts"].items())


_TASK, _TEMPERATURE, _QUALITY = ("task", "{name}"), ("T", "{temperature:g}"), ("quality", _scores)
_PAIR = (_TASK, ("draft", "{drafter}"), _TEMPERATURE)
_COUNTED = (
    ("accepted / examined", _number("acceptance_rate")),
    ("tokens / call", _number("block_efficiency")),
)


def table_2(studies: Sequence[Content]) -> str:
    """Predicted beside measured speedups, of the decoder alone but for "whole".

    Alpha is Corollary 3.6's, along the target's own texts. Of a tree it says nothing.
    """
    pair = itemgetter("name", "drafter", "temperature")
    alphas = {pair(a): a["alpha"] for a in _alphas(studies)}
    decodes = [row for study in studies for row in _leaves(study, "table_2")]
    spread = "{spread[measured_speedup_decoder]"
    columns = [
        *_PAIR, ("γ or tree", _guesses), ("α", _number("alpha")), *_COUNTED,
        ("c", _number("cost_ratio", 3)), ("v", _number("verify_ratio")),
        ("Thm 3.8", _number("predicted_speedup_thm38")), ("with v", _number("predicted_speedup")),
        ("counted", _number("predicted_speedup_counted")),
        ("decoder", "**{measured_speedup_decoder:.2f}**"),
        ("(range)", f"{spread}[low]:.2f}} to {spread}[high]:.2f}}"),
        ("whole", "{measured_speedup:.2f}"), ("ms / token", "{ms_per_token[speculative]:.3f}"),
        ("plain", "{ms_per_token[autoregressive]:.3f}"),
    ]  # fmt: skip
    for row in decodes:
        row["alpha"] = alphas.get(pair(row))
        row |= dict.fromkeys(_OF_CHAINS) if row["tree"] else {}
    return table(columns, decodes)


def quality_table(studies: Sequence[Content]) -> str:
    """The first row's scores for each task and temperature."""
    rows = []
    for study in studies:
        decodes = {r["temperature"]: r for r in reversed(_leaves(study, "table_2"))}
        rows += [decodes[temperature] for temperature in sorted(decodes)]
    columns = [_TASK, ("target", "{target}"), _TEMPERATURE, _QUALITY, ("texts", "{num_examples}")]
    return table(columns, rows)


def paper_table_2() -> str:
    """The twelve rows as printed."""
    columns = [
        ("task", "{task}"), ("draft", "{draft}"), _TEMPERATURE, ("γ", "{gamma}"),
        ("α", "{alpha:.2f}"), ("c", "{cost_ratio:.2f}"), ("expected", "{expected:.1f}"),
        ("empirical", "{empirical:.1f}"),
    ]  # fmt: skip
    return table(columns, [vars(r) | {"cost_ratio": r.cost_ratio} for r in paper.TABLE_4])


def table_5(studies: Sequence[Content]) -> str:
    """Alpha, distance from the target's distribution, and quality, by lenience."""
    nothing = {"acceptance_rate": None, "block_efficiency": None, "quality": None}
    rows, form = [], "LenientVerifier(lenience={!r})"
    for study in studies:
        lenient = _leaves(study, "lenience", 4)
        decodes = {(r["drafter"], r["temperature"], r["verifier"]): r for r in lenient}
        for r in _leaves(study, "table_2"):
            if not r["tree"] and any(r["gamma"] == other["gamma"] for other in lenient):
                decodes[r["drafter"], r["temperature"], form.format(1.0)] = r
        drafters = list(dict.fromkeys(r["drafter"] for r in lenient))
        measured = [a for a in _alphas([study]) if a["drafter"] in drafters]
        for a in sorted(measured, key=lambda a: drafters.index(a["drafter"])):
            for lenience, b in a["lenience"].items():
                setting = a["drafter"], a["temperature"], form.format(float(lenience))
                decode = decodes.get(setting, nothing)
                rows.append({**a, **decode, **b, "lenience": float(lenience)})
    columns = [
        *_PAIR, ("lenience", "{lenience:g}"), ("α", _number("alpha")),
        ("distance from p a token", _number("total_variation", 3)), *_COUNTED, _QUALITY,
    ]  # fmt: skip
    return table(columns, rows)


def paper_table_5() -> str:
    """Alpha by lenience as printed."""
    rows = [[draft, *(f"{a:.2f}" for a in alphas)] for draft, alphas in paper.TABLE_5.items()]
    return markdown(("draft", *(f"l = {x:g}" for x in paper.LENIENCES)), rows)


def alpha_table(studies: Sequence[Content]) -> str:
    """Alpha of every draft, its 95 % interval, and how often there is a guess."""
    interval = "{alpha_interval[0]:.3f} to {alpha_interval[1]:.3f}"
    columns = [
        *_PAIR, ("α", "{alpha:.3f}"), ("95 % interval", interval), ("tokens", "{num_tokens}"),
        ("with a guess", "{guess_rate:.0%}"), ("texts", "{num_texts}"),
    ]  # fmt: skip
    return table(columns, _alphas(studies))


def table_3(contents: Sequence[Content]) -> str:
    """Alpha of every draft at temperatures 0 and 1, of the studies of several summaries."""
    found: dict[tuple[str, str], dict[float, Content]] = {}
    for content in contents:
        for row in _alphas(list(content["studies"].values())):
            found.setdefault((row["name"], row["drafter"]), {})[row["temperature"]] = row

    def at(temperature: float, key: str, form: str) -> Callable[[Any], str]:
        return lambda rows: form.format(rows[temperature][key]) if temperature in rows else "–"

    columns = [
        ("task", lambda rows: next(iter(rows.values()))["name"]),
        ("draft", lambda rows: next(iter(rows.values()))["drafter"]),
        *((f"α, T = {t:g}", at(t, "alpha", "{:.3f}")) for t in (0.0, 1.0)),
        *((f"tokens, T = {t:g}", at(t, "num_tokens", "{:,}")) for t in (0.0, 1.0)),
    ]  # fmt: skip
    return table(columns, list(found.values()))


def paper_table_3() -> str:
    """Alphas as printed."""
    rows = [[target, draft, f"{a:.2f}", f"{b:.2f}"] for target, draft, a, b in paper.TABLE_3]
    return markdown(("target", "draft", "α, T = 0", "α, T = 1"), rows)


def efficiency_table(studies: Sequence[Content]) -> str:
    """How far Equation 1 misses because acceptances come in runs and rows end."""

    def lags(row: Content) -> str:
        values = row["autocorrelation"].values()
        return ", ".join("–" if value is None else f"{value:.2f}" for value in values)

    def efficiency(index: int) -> Callable[[Content], str]:
        form = "{equation_1:.2f} / {measured:.2f}"
        return lambda row: form.format_map([*row["block_efficiency"].values()][index])

    titles = (f"Eq. 1 / these texts, γ = {gamma}" for gamma in (1, 3, 5, 7))
    by_gamma = ((title, efficiency(index)) for index, title in enumerate(titles))
    columns = [*_PAIR, ("autocorrelation at lags 1, 2, 3", lags), *by_gamma]
    return table(columns, _alphas(studies))


def block_table(studies: Sequence[Content]) -> str:
    """Tokens a block by token and by block verification, expected on the same blocks.

    "counted" is the difference of tokens a target call in a decode with each.
    """
    rows = [row for study in studies for row in _leaves(study, "block")]
    columns = [
        _TASK, ("draft", "{path[0]}"), ("T", lambda row: row["path"][1].removeprefix("t")),
        ("γ", lambda row: row["path"][2].removeprefix("gamma")),
        ("token", "{expected[token]:.3f}"), ("block", "{expected[block]:.3f}"),
        ("difference", "{expected[difference]:+.4f}"),
        ("95 % interval", "{expected[interval][0]:+.4f} to {expected[interval][1]:+.4f}"),
        ("blocks", "{expected[num_blocks]}"), ("counted", "{counted[difference]:+.3f}"),
        ("95 % interval", "{counted[interval][0]:+.3f} to {counted[interval][1]:+.3f}"),
        ("rows", "{counted[num_rows]}"),
    ]  # fmt: skip
    return table(columns, rows) if rows else ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A printed number and its calculation."""

    # What it is of, in words; "operations" or "speed", as factors.
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
