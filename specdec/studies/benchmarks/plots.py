"""Pictures of a benchmark's results: systems side by side, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.studies.measure import figures

_OURS, _OTHERS, _PLAIN = figures.GREEN, "#9e9e9e", figures.BLUE


def systems(result: Mapping[str, Any], path: Path) -> None:
    """Milliseconds a token of each system that ran, fastest first; ranges as whiskers."""
    ran = [s for s in result["systems"] if s.get("absent") is None]
    ran.sort(key=lambda s: s["ms_per_token"]["median"], reverse=True)
    with figures.saved(path.parent, path.stem, (7.0, 0.6 + 0.42 * len(ran)), ["svg"]) as figure:
        axes = figure.subplots()
        for index, s in enumerate(ran):
            value = s["ms_per_token"]
            whiskers = [[value["median"] - value["low"]], [value["high"] - value["median"]]]
            colour = _OURS if s["system"].startswith("specdec") else _OTHERS
            axes.barh(index, value["median"], xerr=whiskers, color=colour, capsize=3)
            axes.text(value["high"], index, f"  {value['median']:.2f}", va="center", fontsize=9)
        axes.set_yticks(range(len(ran)), [s["system"] for s in ran])
        axes.set_xlabel("ms per token, encoders included (lower is better)")
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.16)
        figure.suptitle(result["label"], fontsize=10)


def devices(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Speedups by device, the first on top; what is estimated is hatched."""
    with figures.saved(path.parent, path.stem, (7.0, 0.8 + 0.5 * len(rows)), ["svg"]) as figure:
        axes = figure.subplots()
        for index, row in enumerate(reversed(rows)):
            measured = row["how"] == "measured"
            axes.barh(
                index, row["speedup"], color=_OURS if measured else "white", edgecolor=_OURS,
                hatch="" if measured else "///",
            )  # fmt: skip
            axes.text(row["speedup"], index, f"  {row['speedup']:.2f}×", va="center", fontsize=9)
        names = [f"{row['device']}\n{row['models']}" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, fontsize=8)
        axes.axvline(1, color=_OTHERS, linewidth=1)
        axes.set_xlabel("speedup over plain decoding (hatched: estimated by the TPU compiler)")
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)


def sweep(
    results: Sequence[Mapping[str, Any]], x: Callable[[Mapping[str, Any]], int], label: str,
    path: Path,
) -> None:  # fmt: skip
    """Tokens a second of plain and speculative decoding, and v, against ``x`` of a workload."""
    at = [x(result) for result in results]
    with figures.saved(path.parent, path.stem, (7.0, 3.4), ["svg"]) as figure:
        axes = figure.subplots()
        for index, (name, colour) in enumerate((("plain", _PLAIN), ("speculative", _OURS))):
            found = [result["systems"][index]["ms_per_token"] for result in results]
            rates = [1e3 / value["median"] for value in found]
            low = [rate - 1e3 / value["high"] for rate, value in zip(rates, found, strict=True)]
            high = [1e3 / value["low"] - rate for rate, value in zip(rates, found, strict=True)]
            bars = [low, high]
            axes.errorbar(at, rates, yerr=bars, label=name, color=colour, marker="o", capsize=3)
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [str(value) for value in at])
        axes.set_xlabel(label)
        axes.set_ylabel("tokens a second")
        axes.set_ylim(bottom=0)
        right = axes.twinx()
        ratios = [result["breakdown"]["verify_ratio"] for result in results]
        right.plot(at, ratios, color=_OTHERS, linestyle="--", marker=".", label="v (right)")
        right.set_ylabel("verify ratio v")
        right.set_ylim(bottom=0)
        right.grid(visible=False)
        figure.legend(loc="outside upper center", ncols=3, fontsize=8)
        forced = results[0]["forced_alpha"]
        if forced is not None:
            axes.set_title(f"FORCED acceptance {forced:g}", fontsize=10)
