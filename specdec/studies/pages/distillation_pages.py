"""The tables and the picture of docs/distillation.md, from the study of losses and data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.measure.tables import markdown
from specdec.studies.measure import figures
from specdec.studies.pages.files import read_json

# The study's configuration, by a section of the page; the results' directory has its name.
_STUDIES = {"alphas": "distillation", "larger": "distillation_large"}
_TEMPERATURES = ("alpha_t0", "alpha_t1")
_LOSSES = {
    "forward_kl": "forward KL", "reverse_kl": "reverse KL", "jensen_shannon": "Jensen-Shannon",
    "total_variation": "total variation", "negative_log_acceptance": "−log α", "hybrid": "hybrid",
}  # fmt: skip
_DATA = {
    "references": "references", "target": "target's outputs", "draft": "draft's own outputs",
    "mixture": "half target's, half own",
}  # fmt: skip
_COLOURS = ("#9e9e9e", figures.BLUE, figures.GREEN, figures.VERMILION)
START = "before"


def _cells(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(loss, data) of each draft of the study, losses in the order above."""
    names = set(found["alpha_t0"])
    return [(loss, data) for loss in _LOSSES for data in _DATA if f"{loss}_{data}" in names]


def alphas(root: Path, section: str, *, draw: bool) -> str:
    """Alpha with its interval of each loss and data; only the command if there are no results.

    A study of one loss has no picture.

    Raises:
      PageError: the results are damaged.
    """
    study = _STUDIES[section]
    summary = f"results/{study}/summary.json"
    if not (root / summary).is_file():
        config = f"configs/studies/{study}.gin"
        return f"Not run yet: `python scripts/reproduce.py --gin_file={config}`"
    content = read_json(root, summary)
    (found,) = content["distillation"].values()

    def shown(name: str) -> list[str]:
        cells = []
        for key in _TEMPERATURES:
            alpha, (low, high) = found[key][name]["alpha"], found[key][name]["alpha_interval"]
            cells.append(f"{alpha:.3f} ({low:.3f} to {high:.3f})")
        return cells

    rows = [["as it began", "", *shown(START)]] if START in found["alpha_t0"] else []
    rows += [[_LOSSES[loss], _DATA[data], *shown(f"{loss}_{data}")] for loss, data in _cells(found)]
    header = ["loss", "data", "α, temperature 0 (95 %)", "α, temperature 1 (95 %)"]
    tokens = " and ".join(
        f"{next(iter(found[key].values()))['num_tokens']:,}" for key in _TEMPERATURES
    )
    parts = [markdown(header, rows, numbers=True)]
    if len({loss for loss, _ in _cells(found)}) > 1:
        parts.append(f"![Alpha with 95 % intervals, by loss and data](images/{study}.svg)")
        if draw:
            _draw(found, root / "docs" / "images" / f"{study}.svg")
    parts.append(
        f"{tokens} tokens that the target generated. From [summary.json](../{summary}): "
        f"{content['device']}. `{content['command']}`"
    )
    return "\n\n".join(parts)


def _draw(found: Mapping[str, Any], path: Path) -> None:
    cells = _cells(found)
    losses = [loss for loss in _LOSSES if any(loss == each for each, _ in cells)]
    with figures.saved(path.parent, path.stem, (7.5, 3.6), ["svg"]) as figure:
        for axes, key in zip(figure.subplots(1, 2), _TEMPERATURES, strict=True):
            for index, (data, name) in enumerate(_DATA.items()):
                own = [loss for loss in losses if (loss, data) in cells]
                results = [found[key][f"{loss}_{data}"] for loss in own]
                x = [losses.index(loss) + 0.15 * (index - 1.5) for loss in own]
                y = [each["alpha"] for each in results]
                bars = [[abs(each["alpha"] - each["alpha_interval"][end]) for each in results]
                        for end in (0, 1)]  # fmt: skip
                axes.errorbar(
                    x, y, yerr=bars, fmt="o", markersize=4, capsize=2, color=_COLOURS[index],
                    label=name,
                )  # fmt: skip
            if START in found[key]:
                axes.axhline(found[key][START]["alpha"], color="#9e9e9e", linestyle=":")
            axes.set_xticks(
                range(len(losses)), [_LOSSES[loss] for loss in losses], rotation=30, ha="right"
            )
            axes.set_title(f"temperature {key[-1]}", fontsize=10)
            axes.set_ylabel("α")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize=8)
