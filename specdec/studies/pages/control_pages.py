"""The table of docs/guides/execution.md, from the study of a control loop."""

from __future__ import annotations

from pathlib import Path

from specdec.measure.tables import table
from specdec.studies.pages.files import read_json

_SUMMARY = "results/control/summary.json"


def measured(root: Path) -> str:
    """Times, alpha, and the speedups that are predicted and measured.

    Raises:
      PageError: the results are missing.
    """
    remedy = "python scripts/reproduce.py --gin_file=configs/studies/control.gin"
    content = read_json(root, _SUMMARY, remedy)

    def milliseconds(name: str):
        return lambda row: f"{1e3 * row['seconds'][name]['median']:.3g}"

    columns = [
        ("f, ms", milliseconds("distribution")), ("guess, ms", milliseconds("guess")),
        ("g, ms", milliseconds("step")), ("s", "{slowdown[median]:.2f}"), ("α", "{alpha:.3f}"),
        ("accepted", "{accepted} of {decisions}"),
        ("predicted by α", "{predicted[median]:.2f}"),
        ("by what was accepted", "{counted[median]:.2f}"),
        ("measured", "{measured[median]:.2f}"),
        ("(range)", "{measured[low]:.2f} to {measured[high]:.2f}"),
        ("measured / predicted", "{measured_over_counted[median]:.2f}"),
    ]  # fmt: skip
    rows = [row for part in content["control"].values() for row in part.values()]
    source = f"From [summary.json](../../{_SUMMARY}): {content['device']}. `{content['command']}`"
    return f"{table(columns, rows, numbers=True)}\n\n{source}"
