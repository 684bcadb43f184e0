"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from specdec.reproduce import paper_tables
from specdec.reproduce.benchmarks import report
from specdec.reproduce.benchmarks.systems import SYSTEMS
from specdec.reproduce.pages import compiled_pages
from specdec.reproduce.pages.files import Result
from specdec.reproduce.pages.tables import MADE_BY, SOURCE, Section, Table, grid, render

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
    return Section(names, [Table(rows, [("", "{title}"), *_ROWS], across=True), _source])


def _workloads(results: Result) -> Iterator[Result]:
    """Plain and guessed decoding of each workload, the first of each."""
    for found in results["workloads"]:
        fast = next(s for s in found["systems"] if SYSTEMS[s["system"]].guesses)
        yield {**found, "plain": found["systems"][0], "fast": fast}


# A line a workload.
SWEEP = Table(_workloads, [
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
    workloads = results["workloads"]
    if len(workloads) > 1 and report.guesses(workloads[0]):
        return SWEEP(results)
    parts = []
    for found in workloads:
        parts += [f"**{report.title(found)}**", grid(report.COLUMNS, report.rows(found))]
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
        "README.md": page({"devices": compiled_pages.DEVICES}),
        "docs/performance.md": page(
            {"runs": runs()}, benchmark
        ),
        "docs/reproduction.md": page(
            {"table-2-compiled": compiled_pages.TABLE_2, "paper": PAPER}
        ),
        **{name: page({}, benchmark) for name in ("docs/beams.md", "docs/families.md")},
        **{
            f"results/reproduction_{name}/tables.md": page({"tables": Section(
                [f"results/reproduction_{name}/summary.json"], paper_tables.PARTS
            )})
            for name in REPRODUCTIONS
        },
    }  # fmt: skip
