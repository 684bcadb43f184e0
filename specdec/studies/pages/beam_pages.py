"""The tables of docs/beams.md, from the study of beams and their benchmark."""

from __future__ import annotations

from pathlib import Path

from specdec.measure.tables import markdown
from specdec.studies.benchmarks import report
from specdec.studies.pages.files import (
    BEFORE,
    PageError,
    Result,
    read_json,
    read_study,
    sources,
)

_BENCHMARK = "results/benchmark_beams/results.json"
# Where results are, and how the names of their rows begin.
_STUDIES = {"results/beams": "", f"{BEFORE}/beams": "before mutual learning, "}
_ENDS = {
    "miss": "a survivor had not been guessed", "depth": "all guesses were used",
    "done": "the row was done", "limit": "at the length limit",
}  # fmt: skip


def _measured(root: Path) -> list[tuple[str, Result]]:
    """How each pair's rows begin, and what was measured of it.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = []
    for directory, title in _STUDIES.items():
        content = read_study(root, directory)
        try:
            studies.append((title, content["beams"]["EnDe"] | {"source": content}))
        except KeyError as error:
            raise PageError(f"{directory} has no {error}.") from None
    return studies


def _settings(studies: list[tuple[str, Result]]) -> list[tuple[str, Result]]:
    """What to call each pair's widths and gammas, with its result."""
    return [
        (f"{title}W = {width[1:]}, γ = {gamma[5:]}", found)
        for title, measured in studies
        for width, each in measured.items()
        if width.startswith("w")
        for gamma, found in each.items()
        if gamma.startswith("gamma")
    ]


def benchmark(root: Path) -> str:
    """Plain beams beside other systems, a table for each rule.

    Raises:
      PageError: the results are missing or damaged.
    """
    remedy = "python scripts/benchmark.py --gin_file=configs/studies/benchmarks/beams.gin"
    results = read_json(root, _BENCHMARK, remedy)
    parts = []
    for workload in results["workloads"]:
        ran = {**workload, "systems": [s for s in workload["systems"] if not s.get("absent")]}
        parts += [
            f"**{report.title(ran)}**",
            markdown(report.COLUMNS, report.rows(ran), numbers=True),
        ]
    parts.append(
        f"From [results.json](../{_BENCHMARK}): {results['device']}, {results['threads']} threads, "
        f"{results['repetitions']} repetitions. `{results['command']}`"
    )
    return "\n\n".join(parts)


def calls(root: Path) -> str:
    """Target calls of speculative beams beside plain ones, and what differs.

    Raises:
      PageError: the results are missing or damaged.
    """
    measured = _measured(root)
    lines = []
    for name, found in _settings(measured):
        counts = found["counts"]
        against, matched = counts["against_plain"], counts["against_width_matched"]
        gap = f" (largest gap {max(against['gaps']):.0e})" if against["gaps"] else ""
        lines.append([
            name, f"{counts['draft_beams']}", f"{counts['tokens_a_call']}",
            f"{counts['plain_calls']:,}", f"{counts['calls']:,}", f"{counts['calls_saved']:.2f}",
            f"{against['differ']}{gap}", f"{matched['differ']}",
        ])  # fmt: skip
    columns = [
        "", "draft beams", "tokens a call", "calls, plain", "calls, speculative", "times fewer",
        "rows that differ", "width-matched",
    ]  # fmt: skip
    rows = _settings(measured)[0][1]["counts"]["num_rows"]
    source = sources(_STUDIES, (found["source"] for _, found in measured))
    return f"{markdown(columns, lines, numbers=True)}\n\n{rows} rows. From {source}"


def ends(root: Path) -> str:
    """Why blocks ended.

    Raises:
      PageError: the results are missing or damaged.
    """
    settings = _settings(_measured(root))
    lines = []
    for end, title in _ENDS.items():
        counts = [found["counts"] for _, found in settings]
        lines.append(
            [title, *(f"{100 * each['ends'][end] / each['calls']:.0f} %" for each in counts)]
        )
    return markdown(["", *(name for name, _ in settings)], lines, numbers=True)


def times(root: Path) -> str:
    """Whole decodes here, measured and predicted, and computed for devices.

    Raises:
      PageError: the results are missing or damaged.
    """
    settings = _settings(_measured(root))
    planned = settings[0][1]["counts"]["computed"]
    pairs = [f"{each['target'].split('/')[-1]} on {each['hardware']}" for each in planned]
    lines = []
    for name, found in settings:
        time, computed = found["time"], found["counts"]["computed"]
        spread = time["speedup"]
        lines.append([
            name, f"{time['verify_ratio']:.2f}", f"{time['cost_ratio']:.2f}",
            f"{time['predicted']:.2f}",
            f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})",
            *(f"{each['speedup']:.2f}" for each in computed),
        ])  # fmt: skip
    columns = ["", "v", "c", "predicted here", "measured here", *(f"computed, {p}" for p in pairs)]
    return markdown(columns, lines, numbers=True)


def auto(root: Path) -> str:
    """What gamma="auto" chose.

    Raises:
      PageError: the results are missing or damaged.
    """
    return "\n".join(
        f"- {title}W = {width[1:]}: {each['auto']['said']}"
        for title, measured in _measured(root)
        for width, each in measured.items()
        if width.startswith("w")
    )


def quality(root: Path) -> str:
    """BLEU and chrF of beams and of greedy decoding.

    Raises:
      PageError: the results are missing or damaged.
    """
    studies = [(title, measured["quality"]) for title, measured in _measured(root)]
    lines = [
        [title + form.format(found["num_beams"]),
         *(f"{found[name][score]:.1f}" for score in ("bleu", "chrf"))]
        for title, found in studies
        for name, form in (("greedy", "greedy"), ("beams", "{} beams"))
    ]  # fmt: skip
    first = studies[0][1]
    return markdown([f"{first['num_rows']:,} rows", "BLEU", "chrF"], lines, numbers=True)


SECTIONS = {
    "benchmark": benchmark, "calls": calls, "ends": ends, "times": times, "auto": auto,
    "quality": quality,
}  # fmt: skip
