"""The tables of a reproduction, in Markdown, each beside the paper's own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec.measure.tables import markdown
from specdec.reproduction import paper, theory_tables

Content = Mapping[str, Any]


def page(content: Content) -> str:
    """All tables of a ``summary.json``; see :class:`specdec.runs.reproduce.Reproduction`."""
    studies = list(content["studies"].values())
    parts = [
        "## Table 1: operations and speed", theory_tables.table(theory_tables.table_1()),
        "## Table 2: measured speedups", table_2(studies),
        "The paper's rows (T5-XXL on a TPU-v4):", paper_table_2(),
        "Quality of what the targets say, which lossless decoding leaves as it is:",
        quality_table(studies),
        "## Table 4: expected speedups", theory_tables.table(theory_tables.table_4()),
        "## Table 5: lenience", table_5(studies),
        "The paper's (EnDe, T5-XXL, temperature 1): alpha", paper_table_5(),
        "## Alpha along the target's own texts", alpha_table(studies),
        "## Acceptances are not independent", efficiency_table(studies),
        "## Block verification", block_table(studies),
        "## Where the paper contradicts itself",
        "\n".join(f"- {sentence}" for sentence in paper.CONTRADICTIONS),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _leaves(tree: Content, depth: int) -> Iterator[Content]:
    """What stands ``depth`` levels down, in order."""
    if depth == 0:
        yield tree
        return
    for branch in tree.values():
        yield from _leaves(branch, depth - 1)


def _alpha(study: Content, drafter: str, temperature: float) -> Content | None:
    return study["alpha"].get(f"t{temperature:g}", {}).get("drafts", {}).get(drafter)


TABLE_2 = (
    "task", "draft", "T", "γ", "α", "accepted / examined", "tokens / call", "c", "v",
    "Thm 3.8", "with v", "counted", "decoder", "(range)", "whole", "ms / token", "plain",
)  # fmt: skip


def table_2(studies: Sequence[Content]) -> str:
    """Task, draft, temperature, gamma, alpha; expected beside empirical speedup.

    Alpha is Corollary 3.6's, along the target's own texts. "Thm 3.8", "with v" and "counted" are
    predictions for the decoder alone; "whole" has both encoders in it.
    """
    rows = []
    for study in studies:
        for r in _leaves(study.get("table_2", {}), 3):
            alpha = _alpha(study, r["drafter"], r["temperature"])
            spread = r["spread"]["measured_speedup_decoder"]
            rows.append([
                study["name"], r["drafter"], f"{r['temperature']:g}", str(r["gamma"]),
                _number(alpha["alpha"] if alpha else None), _number(r["acceptance_rate"]),
                _number(r["block_efficiency"]), _number(r["cost_ratio"], 3),
                _number(r["verify_ratio"]), _number(r["predicted_speedup_thm38"]),
                _number(r["predicted_speedup"]), _number(r["predicted_speedup_counted"]),
                f"**{r['measured_speedup_decoder']:.2f}**",
                f"{spread['low']:.2f} to {spread['high']:.2f}",
                _number(r["measured_speedup"]),
                *(_number(r["ms_per_token"][m], 3) for m in ("speculative", "autoregressive")),
            ])  # fmt: skip
    return markdown(TABLE_2, rows)


def quality_table(studies: Sequence[Content]) -> str:
    """The first row's scores for each task and temperature."""
    rows = []
    for study in studies:
        decodes = {r["temperature"]: r for r in reversed([*_leaves(study.get("table_2", {}), 3)])}
        rows += [
            [study["name"], r["target"], f"{temperature:g}", _scores(r["quality"]),
             str(r["num_examples"])]
            for temperature, r in sorted(decodes.items())
        ]  # fmt: skip
    return markdown(("task", "target", "T", "quality", "texts"), rows)


def _scores(quality: Content | None) -> str:
    return ", ".join(f"{name} {score:.1f}" for name, score in (quality or {}).items())


def paper_table_2() -> str:
    """The twelve rows as printed."""
    rows = [
        [r.task, r.draft, f"{r.temperature:g}", str(r.gamma), _number(r.alpha),
         _number(r.cost_ratio), _number(r.expected, 1), _number(r.empirical, 1)]
        for r in paper.TABLE_4
    ]  # fmt: skip
    return markdown(("task", "draft", "T", "γ", "α", "c", "expected", "empirical"), rows)


def table_5(studies: Sequence[Content]) -> str:
    """Alpha, distance from the target's law, and quality, by lenience."""
    rows = []
    for study in studies:
        lenient = list(_leaves(study.get("lenience", {}), 4))
        decodes = {(r["drafter"], r["temperature"], r["verifier"]): r for r in lenient}
        for r in _leaves(study.get("table_2", {}), 3):
            if any(r["gamma"] == other["gamma"] for other in lenient):
                decodes[r["drafter"], r["temperature"], _verifier(1.0)] = r
        measured = [
            (drafter, m["temperature"], m["drafts"][drafter])
            for drafter in dict.fromkeys(r["drafter"] for r in lenient)
            for m in study["alpha"].values()
            if drafter in m["drafts"]
        ]
        for drafter, temperature, alpha in measured:
            for lenience, a in alpha["lenience"].items():
                decode = decodes.get((drafter, temperature, _verifier(float(lenience))))
                quality = decode and decode["quality"]
                rows.append([
                    study["name"], drafter, f"{temperature:g}", f"{float(lenience):g}",
                    _number(a["alpha"]), _number(a["total_variation"], 3),
                    _number(decode["acceptance_rate"] if decode else None),
                    _number(decode["block_efficiency"] if decode else None),
                    _scores(quality),
                ])  # fmt: skip
    columns = ("task", "draft", "T", "lenience", "α", "distance from p a token",
               "accepted / examined", "tokens / call", "quality")  # fmt: skip
    return markdown(columns, rows)


def _verifier(lenience: float) -> str:
    return f"LenientVerifier(lenience={lenience!r})"


def paper_table_5() -> str:
    """Alpha by lenience as printed."""
    rows = [[draft, *map(_number, alphas)] for draft, alphas in paper.TABLE_5.items()]
    return markdown(("draft", *(f"l = {x:g}" for x in paper.LENIENCES)), rows)


def alpha_table(studies: Sequence[Content]) -> str:
    """Alpha of every draft at each temperature, with its 95 % interval."""
    rows = []
    for study in studies:
        for measured in study["alpha"].values():
            for drafter, a in measured["drafts"].items():
                low, high = a["alpha_interval"]
                rows.append([
                    study["name"], drafter, f"{measured['temperature']:g}", _number(a["alpha"], 3),
                    f"{low:.3f} to {high:.3f}", str(a["num_tokens"]), str(a["num_texts"]),
                ])  # fmt: skip
    return markdown(("task", "draft", "T", "α", "95 % interval", "tokens", "texts"), rows)


def efficiency_table(studies: Sequence[Content]) -> str:
    """How far Equation 1 misses because acceptances come in runs and rows end."""
    rows = []
    for study in studies:
        for measured in study["alpha"].values():
            for drafter, a in measured["drafts"].items():
                cells = [
                    f"{e['equation_1']:.2f} / {e['measured']:.2f}"
                    for e in a["block_efficiency"].values()
                ]
                lags = ", ".join(_number(v) or "–" for v in a["autocorrelation"].values())
                rows.append([study["name"], drafter, f"{measured['temperature']:g}", lags, *cells])
    gammas = ("1", "3", "5", "7")
    columns = ("task", "draft", "T", "autocorrelation at lags 1, 2, 3",
               *(f"Eq. 1 / these texts, γ = {g}" for g in gammas))  # fmt: skip
    return markdown(columns, rows)


def block_table(studies: Sequence[Content]) -> str:
    """Tokens a block with token and with block verification.

    "block" and "token" are expected values on the same blocks (see
    ``measure/expected_accepted.py``); "counted" is the difference of tokens a target call in
    a decode with each.
    """
    rows = []
    for study in studies:
        for drafter, by_temperature in study.get("block", {}).items():
            for temperature, by_gamma in by_temperature.items():
                for gamma, r in by_gamma.items():
                    expected, counted = r["expected"], r["counted"]
                    rows.append([
                        study["name"], drafter, temperature.removeprefix("t"),
                        gamma.removeprefix("gamma"), _number(expected["token"], 3),
                        _number(expected["block"], 3), *_difference(expected, 4),
                        str(expected["num_blocks"]), *_difference(counted, 3),
                        str(counted["num_rows"]),
                    ])  # fmt: skip
    columns = ("task", "draft", "T", "γ", "token", "block", "difference", "95 % interval",
               "blocks", "counted", "95 % interval", "rows")  # fmt: skip
    return markdown(columns, rows) if rows else ""


def _difference(found: Content, digits: int) -> list[str]:
    low, high = found["interval"]
    return [f"{found['difference']:+.{digits}f}", f"{low:+.{digits}f} to {high:+.{digits}f}"]
