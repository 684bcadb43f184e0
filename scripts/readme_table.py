"""Writes the tables of the bundled pair's runs from committed results files.

    python scripts/readme_table.py            # rewrites the pages of PAGES between their markers
    python scripts/readme_table.py --check    # exit code 1 if one of them would change

One column for each run of RUNS that has a results.json; the first must be there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent

Result = Mapping[str, Any]

# Where a table is: the page, the marker around it, and the directory of its results.
PAGES = (
    ("README.md", "results", "results"),
    ("docs/performance.md", "before-mutual-learning", "results/before_mutual"),
)

# Directories of results, each with the name of its column.
RUNS = {
    "quickstart_ende": "paragraphs, greedy",
    "quickstart_ende_t1": "paragraphs, temperature 1",
    "ende_tatoeba_test": "test split, greedy",
    "ende_tatoeba_test_t1": "test split, temperature 1",
}


def _number(digits: int, suffix: str = ""):
    return lambda value: f"{value:.{digits}f}{suffix}"


def _spread(value: Mapping[str, float]) -> str:
    return f"**{value['median']:.2f}×** ({value['low']:.2f} to {value['high']:.2f})"


# Name in the table, key, how its value is written. A null value is a dash.
ROWS = (
    ("γ", "gamma", str),
    ("texts", "num_examples", "{:,}".format),
    ("tokens", "num_tokens", "{:,}".format),
    ("α", "alpha", _number(3)),
    ("acceptance rate", "acceptance_rate", _number(3)),
    ("draft utilization", "draft_utilization", _number(3)),
    ("block efficiency", "block_efficiency", _number(2)),
    ("cost ratio c", "cost_ratio", _number(3)),
    ("verify ratio v", "verify_ratio", _number(2)),
    ("ms per token, autoregressive", "ms_per_token.autoregressive", _number(2)),
    ("ms per token, speculative", "ms_per_token.speculative", _number(2)),
    ("**speedup, measured** (range)", "spread.measured_speedup", _spread),
    ("speedup, predicted", "predicted_speedup_whole", _number(2, "×")),
    ("without encoders, measured", "spread.measured_speedup_decoder", _spread),
    ("without encoders, predicted", "predicted_speedup", _number(2, "×")),
    ("without encoders, Theorem 3.8 (v = 1)", "predicted_speedup_thm38", _number(2, "×")),
    ("texts that differ from plain decoding", "greedy_mismatches", str),
    ("the same, width-matched", "greedy_mismatches_width_matched", str),
    ("BLEU", "quality.bleu", _number(1)),
)


class TableError(ValueError):
    """A results file or a page is not as it should be."""


def read_results(root: Path, directory: str = "results") -> dict[str, Result]:
    """The results files of a directory by path, the quickstart's own first.

    Raises:
      TableError: that one is missing, or a file is not JSON.
    """
    first = next(iter(RUNS))
    if not (root / directory / first / "results.json").is_file():
        raise TableError(
            f"{directory}/{first}/results.json is missing; make it with: python scripts/decode.py "
            f"--gin_file=configs/experiments/{first}.gin --output_dir={directory}/{first}"
        )
    results = {}
    for run in RUNS:
        name = f"{directory}/{run}/results.json"
        if not (root / name).is_file():
            continue
        try:
            results[name] = json.loads((root / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise TableError(f"{name} is not valid JSON ({error}).") from None
    return results


def _value(result: Result, key: str, source: str) -> Any:
    """The value at a dotted key; None where it, or what should hold it, is null."""
    value: Any = result
    for part in key.split("."):
        if value is None:
            return None
        if part not in value:
            raise TableError(f"{source} has no {key!r}.")
        value = value[part]
    return value


def table(results: Mapping[str, Result], to_root: str = "") -> str:
    """The Markdown table and a line on where its numbers come from.

    Args:
      to_root: leads from the page to where the results' paths begin.

    Raises:
      TableError: a key is missing.
    """

    def row(key, form):
        values = [_value(result, key, source) for source, result in results.items()]
        return " | ".join("–" if value is None else form(value) for value in values)

    runs = {source: source.split("/")[-2] for source in results}
    titles = [RUNS[run] for run in runs.values()]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(results)]
    lines += [f"| {name} | {row(key, form)} |" for name, key, form in ROWS]
    sources = ", ".join(f"[{run}]({to_root}{source})" for source, run in runs.items())
    settings = {
        f"{_value(r, 'device', name)}, {_value(r, 'dtype', name)}, "
        f"batch size {_value(r, 'batch_size', name)}"
        for name, r in results.items()
    }
    lines += ["", f"From {sources}. {'; '.join(sorted(settings))}."]
    return "\n".join(lines)


def with_table(page: str, marker: str, new: str) -> str:
    """The page with ``new`` between its markers.

    Raises:
      TableError: it does not have both markers once, in order.
    """
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.find(end) < page.find(begin):
        raise TableError(f"The page must have {begin} and {end} once each, in this order.")
    before, rest = page.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n{new}\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrites or checks the pages; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    args = parser.parse_args(argv)
    stale = False
    for name, marker, directory in PAGES:
        page = REPO / name
        old = page.read_text(encoding="utf-8")
        try:
            to_root = "../" * name.count("/")
            new = with_table(old, marker, table(read_results(REPO, directory), to_root))
        except TableError as error:
            print(f"readme_table: {name}: {error}", file=sys.stderr)
            return 1
        if not args.check:
            page.write_text(new, encoding="utf-8")
        elif new != old:
            print(f"readme_table: {name} is not up to date; run scripts/readme_table.py.")
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
