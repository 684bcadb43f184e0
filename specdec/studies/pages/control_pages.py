"""The table of docs/guides/execution.md, from the study of a control loop."""

from __future__ import annotations

from specdec.studies.pages.tables import Section, Table

CONTROL = Section(["results/control/summary.json"], [
    Table("control/*/*", [
        ("f, ms", "{seconds[distribution][median]:.3gm}"),
        ("guess, ms", "{seconds[guess][median]:.3gm}"), ("g, ms", "{seconds[step][median]:.3gm}"),
        ("s", "{slowdown[median]:.2f}"), ("α", "{alpha:.3f}"),
        ("accepted", "{accepted} of {decisions}"),
        ("predicted by α", "{predicted[median]:.2f}"),
        ("by what was accepted", "{counted[median]:.2f}"),
        ("measured", "{measured[median]:.2f}"),
        ("(range)", "{measured[low]:.2f} to {measured[high]:.2f}"),
        ("measured / predicted", "{measured_over_counted[median]:.2f}"),
    ]),
    "From [summary.json](../../{path}): {device}. `{command}`",
])  # fmt: skip
