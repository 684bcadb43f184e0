"""The tables and the picture of docs/distillation.md, from the study of losses and data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specdec.studies.measure import figures
from specdec.studies.pages.files import Result, read_json
from specdec.studies.pages.tables import SUMMARY, Section, Table, render

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


def _rows(content: Result) -> Iterator[Result]:
    """What was measured of each draft, by loss and data; first as it began, if that is known."""
    (found,) = content["distillation"].values()
    names = {START: ("as it began", "")}
    names |= {f"{a}_{b}": (_LOSSES[a], _DATA[b]) for a in _LOSSES for b in _DATA}
    for name, (loss, data) in names.items():
        if name in found["alpha_t0"]:
            yield {"loss": loss, "data": data, **{key: found[key][name] for key in _TEMPERATURES}}


def _source(content: Result) -> str:
    first, *_ = _rows(content)
    tokens = " and ".join(f"{first[key]['num_tokens']:,}" for key in _TEMPERATURES)
    return f"{tokens} tokens that the target generated. From {SUMMARY.format_map(content)}"


def alphas(root: Path, section: str, *, draw: bool) -> str:
    """Alpha with its interval of each loss and data; a study of one loss has no picture.

    Raises:
      PageError: the results are missing or damaged.
    """
    study = _STUDIES[section]
    source, interval = (
        f"results/{study}/summary.json",
        "{%[alpha_interval][0]:.3f} to {%[alpha_interval][1]:.3f}",
    )
    columns = [("loss", "{loss}"), ("data", "{data}")]
    columns += [
        (f"α, temperature {key[-1]} (95 %)", f"{{%[alpha]:.3f}} ({interval})".replace("%", key))
        for key in _TEMPERATURES
    ]
    rows = _rows(read_json(root, source))
    several = len({row["loss"] for row in rows if row["data"]}) > 1
    picture = [f"![Alpha with 95 % intervals, by loss and data](images/{study}.svg)"] * several
    parts = [Table(_rows, columns), *picture, _source]
    return render(root, Section([source], parts, study, _draw if several else None), draw=draw)


def _draw(content: Result, path: Path) -> None:
    rows = list(_rows(content))
    losses = list(dict.fromkeys(row["loss"] for row in rows if row["data"]))
    with figures.saved(path.parent, path.stem, (7.5, 3.6), ["svg"]) as figure:
        for axes, key in zip(figure.subplots(1, 2), _TEMPERATURES, strict=True):
            for index, data in enumerate(_DATA.values()):
                own = [row for row in rows if row["data"] == data]
                x = [losses.index(row["loss"]) + 0.15 * (index - 1.5) for row in own]
                y = [row[key]["alpha"] for row in own]
                bars = [[abs(row[key]["alpha"] - row[key]["alpha_interval"][end]) for row in own]
                        for end in (0, 1)]  # fmt: skip
                axes.errorbar(
                    x, y, yerr=bars, fmt="o", markersize=4, capsize=2, color=_COLOURS[index],
                    label=data,
                )  # fmt: skip
            for row in rows:
                if not row["data"]:
                    axes.axhline(row[key]["alpha"], color="#9e9e9e", linestyle=":")
            axes.set_xticks(range(len(losses)), losses, rotation=30, ha="right")
            axes.set_title(f"temperature {key[-1]}", fontsize=10)
            axes.set_ylabel("α")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize=8)
