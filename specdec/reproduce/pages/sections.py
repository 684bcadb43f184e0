"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from specdec.reproduce import paper_tables
from specdec.reproduce.benchmarks import report
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
    ("α", "{alpha:.3f}"),
    ("acceptance rate", "{acceptance_rate:.3f}"),
    ("block efficiency", "{block_efficiency:.2f}"),
    ("cost ratio c", "{cost_ratio:.3f}"), ("verify ratio v", "{verify_ratio:.2f}"),
    ("ms per token, autoregressive", "{ms_per_token[autoregressive]:.2f}"),
    ("ms per token, speculative", "{ms_per_token[speculative]:.2f}"),
    ("**speedup, measured** (range)", _WHOLE),
    ("speedup, predicted", "{predicted_speedup_whole:.2f}×"),
    ("without encoders, measured", _DECODER),
    ("without encoders, predicted", "{predicted_speedup:.2f}×"),
    ("without encoders, Theorem 3.8 (v = 1)", "{predicted_speedup_thm38:.2f}×"),
    ("texts that differ from plain decoding", "{greedy_mismatches}"),
    ("the same, width-matched", "{greedy_mismatches_width_matched}"),
    ("BLEU", "{quality[bleu]:.1f}"),
)  # fmt: skip


def runs(columns: Mapping[str, str] = RUNS) -> Section:
    """Runs, one column each, and where their numbers come from."""

    def rows(*contents: Result) -> Iterator[Result]:
        for title, content in zip(columns.values(), contents, strict=True):
            yield {"title": title, **content}

    def source(*contents: Result) -> str:
        links = [f"[{run}](../{c['path']})" for run, c in zip(columns, contents, strict=True)]
        settings = {"{device}, {dtype}, batch size {batch_size}".format_map(c) for c in contents}
        return f"From {', '.join(links)}. {'; '.join(sorted(settings))}."

    names = [f"results/{run}/results.json" for run in columns]
    return Section(names, [Table(rows, [("", "{title}"), *_ROWS], across=True), source])


def _benchmark_table(results: Result) -> str:
    workloads = results["workloads"]
    if len(workloads) > 1 and report.guesses(workloads[0]):
        return grid(report.SWEEP_COLUMNS, report.sweep_rows(workloads))
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


_FIGURES = {
    1: "A decode, one line per target call: accepted, rejected and corrected tokens",
    2: "Expected tokens per target call, by alpha (Equation 1)",
    3: "The best gamma, by alpha and c",
    4: "Speedup and arithmetic operations, by alpha, at c = 0",
    5: "The calls of a decode with gamma 7, with gamma 3 and without a draft, on one time axis",
}


def _pictures() -> str:
    picture = "**Figure {0}.** {1}.\n\n![{1}](../results/reproduction_{2}/figures/figure_{0}.svg)"
    # Figure 1 is of a text from nothing, as the paper's.
    return "\n\n".join(
        picture.format(number, caption, "lm" if number == 1 else "small")
        for number, caption in _FIGURES.items()
    )


REPRODUCTIONS = ("small", "lm", "dialog")
PAPER = Section(
    [f"results/reproduction_{name}/summary.json" for name in REPRODUCTIONS],
    [
        *paper_tables.SHORT, "## Figures", _pictures(),
        lambda *all_of_them: "\n\n".join(map(SOURCE.format_map, all_of_them)),
    ],
)  # fmt: skip


def sections(root: Path, *, draw: bool) -> dict[str, Callable[[str], str]]:
    """What gives a section's text, by page, and draws its pictures if it is to."""

    def page(
        known: Mapping[str, Section], other: Callable[[str], Section] = {}.__getitem__
    ) -> Callable[[str], str]:
        return lambda name: render(root, known.get(name) or other(name), draw=draw)

    return {
        "README.md": page({"devices": compiled_pages.DEVICES}),
        "docs/performance.md": page(
            {"runs": runs()}, benchmark
        ),
        "docs/reproduction.md": page(
            {"table-2-compiled": compiled_pages.TABLE_2, "paper": PAPER}
        ),
        "docs/families.md": page({}, benchmark),
        **{
            f"results/reproduction_{name}/tables.md": page({"tables": Section(
                [f"results/reproduction_{name}/summary.json"], paper_tables.PARTS
            )})
            for name in REPRODUCTIONS
        },
    }  # fmt: skip
