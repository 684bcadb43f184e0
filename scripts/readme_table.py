"""Writes the README's results table from committed results files.

    python scripts/readme_table.py            # rewrites README.md between its markers
    python scripts/readme_table.py --check    # exit code 1 if README.md would change

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
BEGIN = "<!-- results -->"
END = "<!-- /results -->"

Result = Mapping[str, Any]


# Directories under results/, each with the name of its column.
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
    """A results file or the README is not as it should be."""


def read_results(root: Path) -> dict[str, Result]:
    """The results files by path, the quickstart's own first.

    Raises:
      TableError: that one is missing, or a file is not JSON.
    """
    first = next(iter(RUNS))
    if not (root / "results" / first / "results.json").is_file():
        raise TableError(
            f"results/{first}/results.json is missing; make it with: python scripts/decode.py "
            f"--gin_file=configs/experiments/{first}.gin --output_dir=results/{first}"
        )
    results = {}
    for run in RUNS:
        name = f"results/{run}/results.json"
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


def table(results: Mapping[str, Result]) -> str:
    """The Markdown table and a line on where its numbers come from.

    Raises:
      TableError: a key is missing.
    """

    def row(key, form):
        values = [_value(result, key, source) for source, result in results.items()]
        return " | ".join("–" if value is None else form(value) for value in values)

    titles = [RUNS[source.split("/")[1]] for source in results]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(results)]
    lines += [f"| {name} | {row(key, form)} |" for name, key, form in ROWS]
    sources = ", ".join(f"[{name.split('/')[1]}]({name})" for name in results)
    settings = {
        f"{_value(r, 'device', name)}, {_value(r, 'dtype', name)}, "
        f"batch size {_value(r, 'batch_size', name)}"
        for name, r in results.items()
    }
    lines += ["", f"From {sources}. {'; '.join(sorted(settings))}."]
    return "\n".join(lines)


def with_table(readme: str, new: str) -> str:
    """The README with ``new`` between its markers.

    Raises:
      TableError: it does not have both markers once, in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.find(END) < readme.find(BEGIN):
        raise TableError(f"README.md must have {BEGIN} and {END} once each, in this order.")
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrites or checks README.md; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare; write nothing")
    args = parser.parse_args(argv)
    readme = REPO / "README.md"
    old = readme.read_text(encoding="utf-8")
    try:
        new = with_table(old, table(read_results(REPO)))
    except TableError as error:
        print(f"readme_table: {error}", file=sys.stderr)
        return 1
    if args.check:
        if new != old:
            print("readme_table: README.md is not up to date; run scripts/readme_table.py.")
        return int(new != old)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
