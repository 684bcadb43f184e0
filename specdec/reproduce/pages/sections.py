"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.core.theory import expected_tokens
from specdec.reproduce import paper_tables
from specdec.reproduce.benchmarks import report
from specdec.reproduce.benchmarks.systems import SYSTEMS
from specdec.reproduce.measure import figures
from specdec.reproduce.pages.tables import (
    MADE_BY,
    SOURCE,
    Result,
    Section,
    grid,
    leaves,
    read_json,
    render,
    table_of,
)  # fmt: skip

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
    [table_of(_devices, [
        ("device", "{device}"), ("target + draft", "{models}"),
        ("ms a token, plain", lambda row: _ms(row["plain"])),
        ("speculative", lambda row: _ms(row["speculative"])),
        ("speedup", "**{speedup:.2f}×**"), ("", "{how}"),
    ])],
)  # fmt: skip
TABLE_2 = Section(_ACCELERATORS, [table_of(_table_2, [
    ("task", "{task}"), ("draft", "{report[draft]}"), ("temperature", "{temperature}"),
    ("γ", "{report[gamma]}"), ("α", "{alpha:.2f}"),
    ("c", "{report[cost_ratio]:.3f}"), ("v", "{report[verify_ratio]:.2f}"),
    ("ms a token, plain", "{report[plain_step][ms]:.2f}"), ("speculative", "{token_ms:.2f}"),
    ("whole decode, by the compiler", "**{speedup:.2f}×**"),
    ("paper: expected", "{expected:.1f}×"), ("measured", "{empirical:.1f}×"),
]), SOURCE])  # fmt: skip

# Whisper large-v3 with Distil-Whisper.
SPEECH = Section(["results/speech_compiled/summary.json"], [table_of(
    lambda results: results["compiled"]["speech"]["compiled"].values(), [
        ("chip", "{topology}"), ("batch", lambda row: str(row["settings"].get("batch_size", 1))),
        ("γ", "{gamma}"), ("encoder and start, ms", lambda row: _ms(row["start"]["ms"])),
        ("plain step, ms", lambda row: _ms(row["plain_step"]["ms"])),
        ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"),
        ("speedup at α 0.85", "**{speedup_at[0.85]:.2f}×**"),
    ],
), SOURCE])  # fmt: skip

# README's table of cold starts: the bundled pair.
START = Section(["results/benchmark_start/results.json"], [table_of(
    lambda results: (s for s in results["workloads"][0]["systems"] if s.get("absent") is None), [
        ("system", "{system}"), ("kept from before", lambda s: s["kept"] or "–"),
        ("first token after, s", "{ready:.1f}"), ("24 paragraphs after, s", "{all[median]:.1f}"),
        ("tokens/s", "{tokens_per_second:.0f}"),
    ],
)])  # fmt: skip

# The runs of the bundled pair: directories of results, each with the name of its column.
RUNS = {
    "ende_tatoeba_apart": "without near neighbours, greedy",
    "ende_tatoeba_apart_t1": "without near neighbours, temperature 1",
    "quickstart_ende": "paragraphs, greedy",
    "quickstart_ende_t1": "paragraphs, temperature 1",
    "ende_tatoeba_test": "test split, greedy",
    "ende_tatoeba_test_t1": "test split, temperature 1",
}
_SPREAD = "**{%[median]:.2f}×** ({%[low]:.2f} to {%[high]:.2f})"
_WHOLE = _SPREAD.replace("%", "spread[measured_speedup]")
_DECODER = _SPREAD.replace("%", "spread[measured_speedup_decoder]")
_ROWS = (
    ("γ", "{gamma}"), ("texts", "{num_examples:,}"), ("tokens", "{num_tokens:,}"),
    ("α", "{alpha:.3f}"), ("block efficiency", "{block_efficiency:.2f}"),
    ("cost ratio c", "{cost_ratio:.3f}"), ("verify ratio v", "{verify_ratio:.2f}"),
    ("ms per token, autoregressive", "{ms_per_token[autoregressive]:.2f}"),
    ("ms per token, speculative", "{ms_per_token[speculative]:.2f}"),
    ("**speedup, measured** (range)", _WHOLE),
    ("speedup, predicted", "{predicted_speedup_whole:.2f}×"),
    ("without encoders, measured", _DECODER),
    ("without encoders, predicted", "{predicted_speedup:.2f}×"),
    ("texts that differ from plain decoding", "{greedy_mismatches}"),
    ("BLEU", "{quality[bleu]:.1f}"),
)  # fmt: skip


def _source(*contents: Result) -> str:
    links = [f"[{Path(c['path']).parent.name}](../{c['path']})" for c in contents]
    settings = {"{device}, {dtype}, batch size {batch_size}".format_map(c) for c in contents}
    return f"From {', '.join(links)}. {'; '.join(sorted(settings))}."


def runs(columns: Mapping[str, str] = RUNS) -> Section:
    """Runs, one column each, and where their numbers come from."""

    def rows(*contents: Result) -> Iterator[Result]:
        for title, content in zip(columns.values(), contents, strict=True):
            yield {"title": title, **content}

    names = [f"results/{run}/results.json" for run in columns]
    return Section(names, [table_of(rows, [("", "{title}"), *_ROWS], across=True), _source])


def _workloads(results: Result) -> Iterator[Result]:
    """Plain and guessed decoding of each workload, the first of each."""
    for found in results["workloads"]:
        fast = next(s for s in found["systems"] if SYSTEMS[s["system"]].guesses)
        yield {**found, "plain": found["systems"][0], "fast": fast}


# A line a workload.
SWEEP = table_of(_workloads, [
    ("workload", "{label}"), ("gamma", "{gamma}"), ("alpha", "{breakdown[alpha]:.2f}"),
    ("c", "{breakdown[cost_ratio]:.3f}"), ("v", "{breakdown[verify_ratio]:.2f}"),
    ("tokens a block", "{breakdown[block_efficiency]:.2f}"),
    ("plain, ms per token", "{plain[ms_per_token][median]:.2f}"),
    ("speculative, ms per token", "{fast[ms_per_token][median]:.2f}"),
    ("speedup", "{fast[speedup][median]:.2f}"),
    ("decoder: predicted", "{breakdown[predicted_speedup]:.2f}"),
    ("from blocks", "{breakdown[counted_speedup]:.2f}"),
    ("measured", "{breakdown[measured_speedup]:.2f}"),
])  # fmt: skip


def _benchmark_table(results: Result) -> str:
    if report.sweeps(results):
        return SWEEP(results)
    parts = []
    for found in results["workloads"]:
        parts += [f"**{report.title(found)}**", *(grid(*each) for each in report.tables(found))]
        if found["breakdown"] is not None:
            parts.append(report.decoder_line(found["breakdown"]))
    return "\n\n".join(parts)


def benchmark(name: str) -> Section:
    """results/benchmark_NAME: its table and its command."""
    source = f"[results/benchmark_{name}](../{{path}}): {{device}}, {{threads}} threads, "
    source += f"{{repetitions}} repetitions; {MADE_BY}."
    return Section([f"results/benchmark_{name}/results.json"], [_benchmark_table, source])


_FIGURES = (  # The first is of a text from nothing, as the paper's.
    ("lm", "A decode, one line per target call: accepted, rejected and corrected tokens"),
    ("small", "Expected tokens per target call, by alpha (Equation 1)"),
    ("small", "The best gamma, by alpha and c"),
    ("small", "Speedup and arithmetic operations, by alpha, at c = 0"),
    ("small", "The calls of a decode with gamma 7, with gamma 3 and plainly, on one time axis"),
)
_PICTURE = "**Figure {0}.** {1}.\n\n![{1}](../results/reproduction_{2}/figures/figure_{0}.svg)"
REPRODUCTIONS = ("small", "lm", "dialog")
PAPER = Section(
    [f"results/reproduction_{name}/summary.json" for name in REPRODUCTIONS],
    [
        *paper_tables.SHORT, "## Figures",
        *(_PICTURE.format(i, text, of) for i, (of, text) in enumerate(_FIGURES, start=1)),
        lambda *all_of_them: "\n\n".join(map(SOURCE.format_map, all_of_them)),
    ],
)  # fmt: skip


def sections(root: Path) -> dict[str, Callable[[str], str]]:
    """Functions that give a section's text, by page."""

    def page(
        known: Mapping[str, Section], other: Callable[[str], Section] = {}.__getitem__
    ) -> Callable[[str], str]:
        return lambda name: render(root, known.get(name) or other(name))

    return {
        "README.md": page({"devices": DEVICES, "start": START}),
        "docs/performance.md": page(
            {"runs": runs(), "speech_compiled": SPEECH}, benchmark
        ),
        "docs/reproduction.md": page(
            {"table-2-compiled": TABLE_2, "paper": PAPER}
        ),
        **{name: page({}, benchmark) for name in ("docs/beams.md", "docs/families.md")},
        **{
            f"results/reproduction_{name}/tables.md": page({"tables": Section(
                [f"results/reproduction_{name}/summary.json"], paper_tables.PARTS
            )})
            for name in REPRODUCTIONS
        },
    }  # fmt: skip
