"""The tables of docs/drafts.md, from the study of drafts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from specdec.measure.tables import markdown
from specdec.studies.pages.files import BEFORE, PageError, Result, read_study, sources

# By what the table calls the target.
_STUDIES = {"bundled": "results/drafts", "before mutual learning": f"{BEFORE}/drafts"}
_DEPTHS = 5
_DURATION = re.compile(r"^# Duration: (.+)$", re.MULTILINE)
_RECIPES = {
    "EAGLE-style layer": ("quickstart_eagle", "quickstart_eagle_2", "quickstart_eagle_3"),
    "Medusa heads": ("quickstart_heads",),
    "blockwise heads": ("quickstart_blockwise",),
    "look-ahead embeddings": ("quickstart_look_ahead",),
}
_COLUMNS = [
    "target", "draft", "shape", "parameters", *(f"α{depth}" for depth in range(1, _DEPTHS + 1)),
    "c", "tokens a call", "predicted", "decoder", "whole",
]  # fmt: skip


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _row(target: str, draft: str, shape: str, found: Result) -> list[str]:
    """One draft in one shape."""
    depths = [_number(alpha, 2) for alpha in found["by_depth"][:_DEPTHS]]
    size = found["parameters"]
    return [
        target, draft, shape, "–" if size is None else f"{size:,}",
        *depths, *["–"] * (_DEPTHS - len(depths)),
        _number(found["cost_ratio"], 2), _number(found["block_efficiency"], 2),
        _number(found["predicted_speedup_counted"], 2),
        _number(found["measured_speedup_decoder"], 2), _number(found["measured_speedup"], 2),
    ]  # fmt: skip


def drafts(root: Path, temperature: str) -> str:
    """Every draft and shape at temperature "t0" or "t1", and where the numbers come from.

    Raises:
      PageError: the results are missing or damaged.
    """
    contents = {name: read_study(root, directory) for name, directory in _STUDIES.items()}
    rows, counts = [], set()
    for target, content in contents.items():
        try:
            (studied,) = content["drafts"].values()
            for draft, shapes in studied.items():
                for shape, by_temperature in shapes.items():
                    found = by_temperature[temperature]
                    rows.append(_row(target, draft, shape.replace("-", " ", 1), found))
                    counts.add(found["num_examples"])
        except (KeyError, ValueError) as error:
            where = _STUDIES[target]
            raise PageError(f"{where} has no study of drafts ({error!r}).") from None
    if len(counts) != 1:
        where = " and ".join(_STUDIES.values())
        raise PageError(f"The studies in {where} have {sorted(counts)} sentences: decode as many.")
    (count,) = counts
    return (
        f"{markdown(_COLUMNS, rows, numbers=True)}\n\n"
        f"{count} sentences. From {sources(_STUDIES.values(), contents.values())}"
    )


def training(root: Path) -> str:
    """How long each draft was trained, as its recipes tell.

    Raises:
      PageError: a recipe does not tell it.
    """
    rows = []
    for draft, recipes in _RECIPES.items():
        for number, recipe in enumerate(recipes, 1):
            path = f"configs/training/{recipe}.gin"
            found = _DURATION.search((root / path).read_text(encoding="utf-8"))
            if found is None:
                raise PageError(f"{path} has no line '# Duration: ...'.")
            stage = f"{draft}, stage {number}" if len(recipes) > 1 else draft
            rows.append([stage, f"[{recipe}](../{path})", found[1].rstrip(".")])
    return markdown(["draft", "recipe", "training"], rows)


SECTIONS: Mapping[str, Callable[[Path], str]] = {
    "training": training,
    "temperature-0": lambda root: drafts(root, "t0"),
    "temperature-1": lambda root: drafts(root, "t1"),
}
