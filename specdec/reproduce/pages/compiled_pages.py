"""README's table of devices, and decodes that were compiled for TPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.core.theory import expected_tokens
from specdec.reproduce.measure import figures
from specdec.reproduce.pages.files import Result, read_json
from specdec.reproduce.pages.tables import SOURCE, Section, Table, leaves

_ALPHA = "0.75"  # The paper's of T5-small under T5-XXL, English to German, greedy.
_MEASURED = {
    "gpu_xxl": "T5-XXL + T5-small", "t5_large": "T5-large + T5-small",
    "quickstart": "the bundled pair, its own α",
}  # fmt: skip
# README's row of a TPU.
_ON_TPU = {"chip": "v4", "target": "T5-XXL", "draft": "T5-small", "gamma": 7, "temperature": 0.0}
PICTURE = "docs/images/devices.svg"
_TASKS = {"ende": "EnDe", "cnndm": "CNNDM"}


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _table_2(content: Result) -> Iterator[Result]:
    """The paper's rows on its own chip, by the compiler."""
    for row in leaves(content, "compiled/paper/table_2/{task}/*/t{temperature}"):
        report = row["report"]
        token_ms = report["block"]["ms"] / expected_tokens(row["alpha"], report["gamma"])
        yield {**row, "token_ms": token_ms, "task": _TASKS[row["task"]]}


def _devices(compiled: Result, *measured: Result) -> list[dict[str, Any]]:
    """Each kind of device's speedup, and how it is known."""
    (tpu,) = (
        found for found in compiled["compiled"]["steps"]["compiled"].values()
        if found["settings"].items() >= _ON_TPU.items()
    )  # fmt: skip
    plain = tpu["plain_step"]["ms"] + tpu["plain_start"]["ms"] / tpu["tokens"]
    rows = [{
        "device": "TPU v4", "models": f"T5-XXL + T5-small, γ 7, α {_ALPHA}", "plain": plain,
        "speculative": plain / tpu["speedup_at"][_ALPHA], "speedup": tpu["speedup_at"][_ALPHA],
        "how": "estimated by the TPU compiler",
    }]  # fmt: skip
    for content, models in zip(measured, _MEASURED.values(), strict=True):
        (found,) = content["workloads"]
        times = {each["system"]: each for each in found["systems"]}
        plain, speculative = (times[f"specdec {way}"] for way in ("autoregressive", "speculative"))
        forced = found["forced_alpha"]
        rows.append({
            "device": content["device"].removeprefix("1 x "),
            "models": f"{models}, γ {found['gamma']}" + (f", α {forced}" if forced else ""),
            "plain": plain["ms_per_token"]["median"],
            "speculative": speculative["ms_per_token"]["median"],
            "speedup": speculative["speedup"]["median"], "how": "measured",
        })  # fmt: skip
    return rows


def draw_devices(root: Path) -> None:
    """Speedups by device, the first on top; estimates are hatched."""
    rows, path = _devices(*(read_json(root, each) for each in DEVICES.sources)), root / PICTURE
    with figures.saved(path.parent, path.stem, (7.0, 0.8 + 0.5 * len(rows)), ["svg"]) as figure:
        axes = figure.subplots()
        for index, row in enumerate(reversed(rows)):
            measured = row["how"] == "measured"
            axes.barh(
                index, row["speedup"], color=figures.GREEN if measured else "white",
                edgecolor=figures.GREEN, hatch="" if measured else "///",
            )  # fmt: skip
            axes.text(row["speedup"], index, f"  {row['speedup']:.2f}×", va="center", fontsize=9)
        names = [f"{row['device']}\n{row['models']}" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, fontsize=8)
        axes.axvline(1, color="#9e9e9e", linewidth=1)
        axes.set_xlabel("speedup over plain decoding (hatched: estimated by the TPU compiler)")
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)


_ACCELERATORS = ["results/accelerators/summary.json"]
DEVICES = Section(
    [*_ACCELERATORS, *(f"results/benchmark_{name}/results.json" for name in _MEASURED)],
    [Table(_devices, [
        ("device", "{device}"), ("target + draft", "{models}"),
        ("ms a token, plain", lambda row: _ms(row["plain"])),
        ("speculative", lambda row: _ms(row["speculative"])),
        ("speedup", "**{speedup:.2f}×**"), ("", "{how}"),
    ])],
)  # fmt: skip
TABLE_2 = Section(_ACCELERATORS, [Table(_table_2, [
    ("task", "{task}"), ("draft", "{report[draft]}"), ("temperature", "{temperature}"),
    ("γ", "{report[gamma]}"), ("α", "{alpha:.2f}"),
    ("c", "{report[cost_ratio]:.3f}"), ("v", "{report[verify_ratio]:.2f}"),
    ("ms a token, plain", "{report[plain_step][ms]:.2f}"), ("speculative", "{token_ms:.2f}"),
    ("whole decode, by the compiler", "**{speedup:.2f}×**"),
    ("paper: expected", "{expected:.1f}×"), ("measured", "{empirical:.1f}×"),
]), SOURCE])  # fmt: skip
