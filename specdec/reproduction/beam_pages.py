"""The tables of docs/beams.md, from the study of beams and their benchmark."""

from __future__ import annotations

from pathlib import Path

from specdec.benchmarks import report
from specdec.measure.tables import markdown
from specdec.reproduction.page_files import PageError, Result, read_json

_SUMMARY, _BENCHMARK = "results/beams/summary.json", "results/benchmark_beams/results.json"
_ENDS = {
    "miss": "a survivor had not been guessed", "depth": "all guesses were used",
    "done": "the row was done", "limit": "at the length limit",
}  # fmt: skip


def _measured(root: Path) -> Result:
    remedy = "python scripts/reproduce.py --gin_file=configs/reproduce/beams.gin"
    content = read_json(root, _SUMMARY, remedy)
    try:
        return content["beams"]["EnDe"] | {"source": content}
    except KeyError as error:
        raise PageError(f"{_SUMMARY} has no {error}.") from None


def _settings(measured: Result) -> list[tuple[str, Result]]:
    """What to call each width and gamma, with its result."""
    return [
        (f"W = {width[1:]}, γ = {gamma[5:]}", found)
        for width, each in measured.items()
        if width.startswith("w")
        for gamma, found in each.items()
        if gamma.startswith("gamma")
    ]


def _source(measured: Result) -> str:
    source = measured["source"]
    return f"From [summary.json](../{_SUMMARY}): {source['device']}. `{source['command']}`"


def benchmark(root: Path) -> str:
    """Plain beams beside other systems, a table for each rule.

    Raises:
      PageError: the results are missing or damaged.
    """
    remedy = "python scripts/benchmark.py --gin_file=configs/benchmarks/beams.gin"
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
    return f"{markdown(columns, lines, numbers=True)}\n\n{rows} rows. {_source(measured)}"


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
    measured = _measured(root)
    return "\n".join(
        f"- W = {width[1:]}: {each['auto']['said']}"
        for width, each in measured.items()
        if width.startswith("w")
    )


def quality(root: Path) -> str:
    """BLEU and chrF of beams and of greedy decoding.

    Raises:
      PageError: the results are missing or damaged.
    """
    found = _measured(root)["quality"]
    lines = [
        [title, *(f"{found[name][score]:.1f}" for score in ("bleu", "chrf"))]
        for name, title in (("greedy", "greedy"), ("beams", f"{found['num_beams']} beams"))
    ]
    return markdown([f"{found['num_rows']:,} rows", "BLEU", "chrF"], lines, numbers=True)


SECTIONS = {
    "benchmark": benchmark, "calls": calls, "ends": ends, "times": times, "auto": auto,
    "quality": quality,
}  # fmt: skip
