"""The tables of docs/beams.md, from the study of beams and their benchmark."""

from __future__ import annotations

from specdec.measure.tables import Columns
from specdec.studies.benchmarks import report
from specdec.studies.pages.files import Result
from specdec.studies.pages.tables import SOURCE, Section, Table, grid, spread

_STUDY, _BENCHMARK = ["results/beams/summary.json"], ["results/benchmark_beams/results.json"]
_SETTINGS, _NAME = "beams/EnDe/w{w}/gamma{g}", ("", "W = {w}, γ = {g}")


def _benchmarks(results: Result) -> str:
    parts = []
    for each in results["workloads"]:
        ran = {**each, "systems": [s for s in each["systems"] if not s.get("absent")]}
        parts += [f"**{report.title(ran)}**", grid(report.COLUMNS, report.rows(ran))]
    return "\n\n".join(parts)


def _differ(row: Result) -> str:
    against = row["counts"]["against_plain"]
    gap = f" (largest gap {max(against['gaps']):.0e})" if against["gaps"] else ""
    return f"{against['differ']}{gap}"


def _times(content: Result) -> Columns:
    computed = content["beams"]["EnDe"]["w2"]["gamma1"]["counts"]["computed"]
    return [
        _NAME, ("v", "{time[verify_ratio]:.2f}"), ("c", "{time[cost_ratio]:.2f}"),
        ("predicted here", "{time[predicted]:.2f}"), ("measured here", spread("time[speedup]")),
        *((f"computed, {each['target'].split('/')[-1]} on {each['hardware']}",
           f"{{counts[computed][{index}][speedup]:.2f}}") for index, each in enumerate(computed)),
    ]  # fmt: skip


SECTIONS = {
    "benchmark": Section(_BENCHMARK, [
        _benchmarks,
        "From [results.json](../{path}): {device}, {threads} threads, {repetitions} repetitions. "
        "`{command}`",
    ]),
    "calls": Section(_STUDY, [
        Table(_SETTINGS, [
            _NAME, ("draft beams", "{counts[draft_beams]}"),
            ("tokens a call", "{counts[tokens_a_call]}"),
            ("calls, plain", "{counts[plain_calls]:,}"),
            ("calls, speculative", "{counts[calls]:,}"),
            ("times fewer", "{counts[calls_saved]:.2f}"), ("rows that differ", _differ),
            ("width-matched", "{counts[against_width_matched][differ]}"),
        ]),
        "{beams[EnDe][w2][gamma1][counts][num_rows]} rows. From " + SOURCE,
    ]),
    "ends": Section(_STUDY, [Table(_SETTINGS, [_NAME, *(
        (title, lambda row, end=end: f"{row['counts']['ends'][end] / row['counts']['calls']:.0%}"
            .replace("%", " %"))
        for end, title in (
            ("miss", "a survivor had not been guessed"), ("depth", "all guesses were used"),
            ("done", "the row was done"), ("limit", "at the length limit"),
        )
    )], across=True)]),
    "times": Section(_STUDY, [Table(_SETTINGS, _times)]),
    "auto": Section(_STUDY, [Table("beams/EnDe/w{w}", "- W = {w}: {auto[said]}")]),
    "quality": Section(_STUDY, [Table("beams/EnDe/quality/(?P<search>greedy|beams)", [
        ("{beams[EnDe][quality][num_rows]:,} rows",
         lambda row: row["search"].replace("beams", f"{row['num_beams']} beams")),
        ("BLEU", "{bleu:.1f}"), ("chrF", "{chrf:.1f}"),
    ])]),
}  # fmt: skip
