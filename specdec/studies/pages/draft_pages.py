"""The tables of docs/drafts.md, from the study of drafts and from recipes."""

from __future__ import annotations

import re
from pathlib import Path

from specdec.studies.pages.files import PageError
from specdec.studies.pages.tables import SOURCE, Section, Table, grid

_DURATION = re.compile(r"^# Duration: (.+)$", re.MULTILINE)
RECIPES = {
    "EAGLE-style layer, stage 1": "quickstart_eagle",
    "EAGLE-style layer, stage 2": "quickstart_eagle_2",
    "EAGLE-style layer, stage 3": "quickstart_eagle_3", "Medusa heads": "quickstart_heads",
    "blockwise heads": "quickstart_blockwise", "look-ahead embeddings": "quickstart_look_ahead",
}  # fmt: skip
SECTIONS = {
    f"temperature-{temperature}": Section(["results/drafts/summary.json"], [
        Table(f"drafts/EnDe/{{draft}}/{{shape}}/t{temperature}", [
            ("draft", "{draft}"), ("shape", lambda row: row["shape"].replace("-", " ", 1)),
            ("parameters", "{parameters:,}"),
            *((f"α{depth + 1}", f"{{by_depth[{depth}]:.2f}}") for depth in range(5)),
            ("c", "{cost_ratio:.2f}"), ("tokens a call", "{block_efficiency:.2f}"),
            ("predicted", "{predicted_speedup_counted:.2f}"),
            ("decoder", "{measured_speedup_decoder:.2f}"), ("whole", "{measured_speedup:.2f}"),
        ]),
        "{drafts[EnDe][bigram][chain-3][t0][num_examples]} sentences. From " + SOURCE,
    ])
    for temperature in (0, 1)
}  # fmt: skip


def training(root: Path) -> str:
    """How long each draft was trained, as its recipe tells; raises PageError if it does not."""
    rows = []
    for draft, recipe in RECIPES.items():
        path = f"configs/training/{recipe}.gin"
        found = _DURATION.search((root / path).read_text(encoding="utf-8"))
        if found is None:
            raise PageError(f"{path} has no line '# Duration: ...'.")
        rows.append((draft, f"[{recipe}](../{path})", found[1].rstrip(".")))
    return grid(("draft", "recipe", "training"), rows, numbers=False)
