"""Writes the tables and pictures of docs/performance.md from committed results files.

    python scripts/performance_page.py            # rewrites the page between its markers
    python scripts/performance_page.py --check    # exit code 1 if its text would change

A section of the page between <!-- NAME --> and <!-- /NAME --> shows
results/benchmark_NAME/results.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from specdec.benchmarks import plots, report

PAGE = REPO / "docs" / "performance.md"
SECTION = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)


def section(name: str, results: Mapping[str, Any]) -> str:
    """The text between one pair of markers."""
    out, workloads = [], results["workloads"]
    if len(workloads) > 1:
        out += [*_table(report.SWEEP_COLUMNS, report.sweep_rows(workloads)), ""]
    else:
        (result,) = workloads
        out += [f"**{report.title(result)}**", "", *_table(report.COLUMNS, report.rows(result))]
        if result["breakdown"] is not None:
            out += ["", "```", *report.breakdown_lines(result["breakdown"]), "```"]
        out.append("")
    out += [f"![{caption}](images/{file})" for file, caption in pictures(name, results)]
    source = f"../results/benchmark_{name}/results.json"
    out += [
        "",
        f"[results/benchmark_{name}]({source}): {results['device']}, {results['threads']} threads, "
        f"{results['repetitions']} repetitions. `{results['command']}`",
    ]
    return "\n".join(out)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return [lines[0], "|---|" + "---:|" * (len(columns) - 1), *lines[1:]]


QUANTITIES = {
    "batch size": lambda w: w["batch_size"],
    "input tokens a row": lambda w: w["input_tokens"] // w["num_rows"],
    "output tokens a row": lambda w: w["systems"][0]["num_tokens"] // w["num_rows"],
}


def varying(workloads: Sequence[Mapping[str, Any]]) -> str | None:
    """The one quantity that differs between workloads; None if there is not exactly one."""
    found = [
        name
        for name, value in QUANTITIES.items()
        if len({value(workload) for workload in workloads}) == len(workloads) > 1
    ]
    return found[0] if len(found) == 1 else None


def pictures(name: str, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """File names and captions."""
    file = f"performance_{name}.svg"
    if len(results["workloads"]) == 1:
        return [(file, "Milliseconds a token, by system")]
    quantity = varying(results["workloads"])
    return [(file, f"Tokens a second against {quantity}")] if quantity else []


def draw(name: str, results: Mapping[str, Any]) -> None:
    """Writes the pictures."""
    workloads, quantity = results["workloads"], varying(results["workloads"])
    for file, _ in pictures(name, results):
        path = REPO / "docs" / "images" / file
        if quantity is None:
            plots.systems(workloads[0], path)
        else:
            plots.sweep(workloads, QUANTITIES[quantity], quantity, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrites or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    args = parser.parse_args(argv)
    old = PAGE.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        path = REPO / "results" / f"benchmark_{name}" / "results.json"
        results = json.loads(path.read_text(encoding="utf-8"))
        if not args.check:
            draw(name, results)
        return f"<!-- {name} -->\n{section(name, results)}\n<!-- /{name} -->"

    try:
        new = SECTION.sub(fill, old)
    except FileNotFoundError as error:
        print(f"performance_page: {error.filename} is missing.", file=sys.stderr)
        return 1
    if args.check:
        if new != old:
            print("performance_page: docs/performance.md is not up to date.")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
