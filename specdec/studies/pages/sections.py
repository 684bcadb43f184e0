"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specdec.studies import paper_tables, scaling
from specdec.studies.benchmarks import plots, report
from specdec.studies.pages import folders
from specdec.studies.pages.beam_pages import SECTIONS as BEAMS
from specdec.studies.pages.compiled_pages import DEVICES
from specdec.studies.pages.compiled_pages import SECTIONS as COMPILED
from specdec.studies.pages.control_pages import CONTROL
from specdec.studies.pages.distillation_pages import alphas
from specdec.studies.pages.draft_pages import SECTIONS as DRAFTS
from specdec.studies.pages.draft_pages import training
from specdec.studies.pages.files import Result
from specdec.studies.pages.loop_pages import LOOPS
from specdec.studies.pages.rule_pages import SECTIONS as RULES
from specdec.studies.pages.tables import SUMMARY, Section, Table, grid, render, spread
from specdec.studies.pages.tree_pages import SECTIONS as TREES

# Results of the bundled pair before mutual learning.
BEFORE = "results/before_mutual"
# The runs of the bundled pair: directories of results, each with the name of its column.
RUNS = {
    "ende_tatoeba_apart": "without near neighbours, greedy",
    "ende_tatoeba_apart_t1": "without near neighbours, temperature 1",
    "quickstart_ende": "paragraphs, greedy",
    "quickstart_ende_t1": "paragraphs, temperature 1",
    "ende_tatoeba_test": "test split, greedy",
    "ende_tatoeba_test_t1": "test split, temperature 1",
}
# The target's own copy as the draft, and its weights in 8 bits.
FEW_BITS = {
    "ende_tatoeba_test": "draft model, greedy",
    "ende_tatoeba_test_quantized": "own copy, greedy",
    "ende_tatoeba_test_quantized_t1": "own copy, temperature 1",
    "ende_tatoeba_test_int8": "int8 target, draft model, greedy",
}
# Trees beside a chain.
TREE_RUNS = {
    "ende_tatoeba_test": "chain of 3",
    "ende_tatoeba_test_tree": "tree 4-1-1-1",
    "ende_tatoeba_test_best_first": "best-first tree of 16",
}
# The bundled pair's paragraphs in several environments: its oldest JAX, the pinned one, the newest.
VERSIONS = {
    "0.8.0_python3.11": "oldest",
    "0.10.2_python3.11": "pinned; newest for Python 3.11",
    "0.10.2_python3.13": "pinned, on Python 3.13",
    "0.12.0.1_python3.13": "newest",
}
_SPREAD = "**{%[median]:.2f}×** ({%[low]:.2f} to {%[high]:.2f})"
_WHOLE = _SPREAD.replace("%", "spread[measured_speedup]")
_DECODER = _SPREAD.replace("%", "spread[measured_speedup_decoder]")
_TEXTS = (("texts", "{num_examples:,}"), ("tokens", "{num_tokens:,}"))
_V = ("verify ratio v", "{verify_ratio:.2f}")
_EFFICIENCY = ("block efficiency", "{block_efficiency:.2f}")
_MEASURED = ("**speedup, measured** (range)", _WHOLE)
_PARTS = (
    ("without encoders, measured", _DECODER),
    ("without encoders, predicted", "{predicted_speedup:.2f}×"),
)
_SAME = (
    ("texts that differ from plain decoding", "{greedy_mismatches}"),
    ("the same, width-matched", "{greedy_mismatches_width_matched}"),
)
_ROWS = (
    ("γ", "{gamma}"), *_TEXTS, ("α", "{alpha:.3f}"),
    ("acceptance rate", "{acceptance_rate:.3f}"),
    ("draft utilization", "{draft_utilization:.3f}"), _EFFICIENCY,
    ("cost ratio c", "{cost_ratio:.3f}"), _V,
    ("ms per token, autoregressive", "{ms_per_token[autoregressive]:.2f}"),
    ("ms per token, speculative", "{ms_per_token[speculative]:.2f}"), _MEASURED,
    ("speedup, predicted", "{predicted_speedup_whole:.2f}×"), *_PARTS,
    ("without encoders, Theorem 3.8 (v = 1)", "{predicted_speedup_thm38:.2f}×"), *_SAME,
    ("BLEU", "{quality[bleu]:.1f}"),
)  # fmt: skip
_FEW_BITS_ROWS = (
    *_ROWS, ("chrF", "{quality[chrf]:.1f}"),
    ("agreement with the full weights (α)", "{agreement[alpha]:.3f}"),
)  # fmt: skip
_VERSION_ROWS = (
    ("JAX", "{versions[jax]}"), ("Flax", "{versions[flax]}"), ("Python", "{versions[python]}"),
    *_TEXTS, ("target calls", "{target_calls}"),
    ("ms per token, autoregressive (range)", spread("spread[ms_per_token][autoregressive]")),
    ("ms per token, speculative, γ = 3 (range)", spread("spread[ms_per_token][speculative]")),
    *_SAME,
)  # fmt: skip
_TREE_ROWS = (*_TEXTS, _EFFICIENCY, _V, _MEASURED, *_PARTS, *_SAME)


def runs(
    columns: Mapping[str, str] = RUNS, lines: Sequence[tuple[str, str]] = _ROWS, *,
    directory: str = "results",
) -> Section:  # fmt: skip
    """Runs, one column each, and where their numbers come from."""

    def rows(*contents: Result) -> Iterator[Result]:
        for title, content in zip(columns.values(), contents, strict=True):
            yield {"title": title, **content}

    def source(*contents: Result) -> str:
        links = [f"[{run}](../{c['path']})" for run, c in zip(columns, contents, strict=True)]
        settings = {"{device}, {dtype}, batch size {batch_size}".format_map(c) for c in contents}
        return f"From {', '.join(links)}. {'; '.join(sorted(settings))}."

    names = [f"{directory}/{run}/results.json" for run in columns]
    return Section(names, [Table(rows, [("", "{title}"), *lines], across=True), source])


# The columns of the pair before and after mutual learning: where runs are, how their names end.
_COMPARED = {
    "greedy, before": (BEFORE, ""), "greedy, after": ("results", ""),
    "sampled, before": (BEFORE, "_t1"), "sampled, after": ("results", "_t1"),
}  # fmt: skip


def _compared(*contents: Result) -> Iterator[Result]:
    for index, title in enumerate(_COMPARED):
        yield {"title": title, "new": contents[2 * index], "test": contents[2 * index + 1]}


def _machines(*contents: Result) -> str:
    (device,) = {content["device"] for content in contents}  # Speedups are compared.
    return f"Measured on {device}."


COMPARISON = Section(
    [
        f"{directory}/ende_tatoeba_{split}{ending}/results.json"
        for directory, ending in _COMPARED.values() for split in ("apart", "test")
    ],
    [
        Table(_compared, [
            ("", "{title}"), ("new sentences: α", "{new[alpha]:.3f}"),
            ("new sentences: BLEU", "{new[quality][bleu]:.1f}"),
            ("test split: α", "{test[alpha]:.3f}"),
            ("test split: BLEU", "{test[quality][bleu]:.1f}"),
            ("c", "{test[cost_ratio]:.3f}"), ("v", "{test[verify_ratio]:.2f}"),
            ("decoder speedup, predicted", "{test[predicted_speedup]:.2f}×"),
            ("decoder speedup, measured", "{test[measured_speedup_decoder]:.2f}×"),
            ("whole speedup, measured", "**{test[measured_speedup]:.2f}×**"),
        ], across=True),
        _machines,
    ],
)  # fmt: skip


_QUANTITIES: Mapping[str, Callable[[Result], int]] = {
    "batch size": lambda w: w["batch_size"],
    "input tokens per row": lambda w: w["input_tokens"] // w["num_rows"],
    "output tokens per row": lambda w: w["systems"][0]["num_tokens"] // w["num_rows"],
}


def _varying(workloads: Sequence[Result]) -> str | None:
    """The one quantity that differs between all workloads."""
    names = [n for n, of in _QUANTITIES.items() if len(set(map(of, workloads))) == len(workloads)]
    return names[0] if len(names) == 1 else None


def _benchmark_table(results: Result) -> str:
    workloads = results["workloads"]
    if len(workloads) > 1 and report.guesses(workloads[0]):
        return grid(report.SWEEP_COLUMNS, report.sweep_rows(workloads))
    parts = []
    for found in workloads:
        parts += [f"**{report.title(found)}**", grid(report.COLUMNS, report.rows(found))]
        if found["breakdown"] is not None:
            parts.append("\n".join(["```", *report.breakdown_lines(found["breakdown"]), "```"]))
    return "\n\n".join(parts)


def benchmark(name: str) -> Section:
    """results/benchmark_NAME: its table, its picture against what varies, and its command."""

    def picture(results: Result) -> str:
        caption, workloads = "Milliseconds per token, by system", results["workloads"]
        if len(workloads) > 1:
            caption = f"Tokens per second against {_varying(workloads)}"
            if not _varying(workloads):
                return ""
        return f"![{caption}](images/performance_{name}.svg)"

    def draw(results: Result, path: Path) -> None:
        workloads = results["workloads"]
        if len(workloads) == 1:
            plots.systems(workloads[0], path)
        elif varying := _varying(workloads):
            plots.sweep(workloads, _QUANTITIES[varying], varying, path)

    source = f"[results/benchmark_{name}](../{{path}}): {{device}}, {{threads}} threads, "
    source += "{repetitions} repetitions. `{command}`"
    files, parts = [f"results/benchmark_{name}/results.json"], [_benchmark_table, picture, source]
    return Section(files, parts, f"performance_{name}", draw)


_FIGURES = {
    1: "A decode, one line per target call: accepted, rejected and corrected tokens",
    2: "Expected tokens per target call, by alpha (Equation 1)",
    3: "The best gamma, by alpha and c",
    4: "Speedup and arithmetic operations, by alpha, at c = 0",
    5: "The calls of a decode with gamma 7, with gamma 3 and without a draft, on one time axis",
}


def reproduction(name: str) -> Section:
    """results/reproduction_NAME: its tables, and the figures beside its summary."""
    directory = f"results/reproduction_{name}"
    picture = "**Figure {0}.** {1}.\n\n![{1}](../{2}/figures/figure_{0}.svg)"
    # Figure 1 is of a text from nothing, as the paper's.
    pictures = [
        picture.format(number, caption, "results/reproduction_lm" if number == 1 else directory)
        for number, caption in _FIGURES.items()
    ]
    parts = [*paper_tables.PARTS, "## Figures", *pictures, SUMMARY]
    return Section([f"{directory}/summary.json"], parts)


# Table 3 from three studies, and the speeds of the last two, which are of GPTs.
DECODER_ONLY = Section(
    [f"results/reproduction_{each}/summary.json" for each in ("small", "lm", "dialog")],
    [
        "## Table 3: alpha by target and draft", paper_tables.TABLE_3,
        "The paper's:", paper_tables.PAPER_TABLE_3,
        "## Decoder-only models: measured speedups", lambda _, *gpts: paper_tables.TABLE_2(*gpts),
        "## Decoder-only models: block verification", lambda _, *gpts: paper_tables.BLOCKS(*gpts),
        lambda _, *gpts: "\n\n".join(map(SUMMARY.format_map, gpts)),
    ],
)  # fmt: skip
_PERFORMANCE = {
    **COMPILED, "comparison": COMPARISON, "runs": runs(),
    "loops": LOOPS,
    "few-bits": runs(FEW_BITS, _FEW_BITS_ROWS), "before-mutual-learning": runs(directory=BEFORE),
    "jax-versions": runs(VERSIONS, _VERSION_ROWS, directory="results/jax_versions"),
}  # fmt: skip


def sections(
    root: Path, numbers: Callable[[], Result], *, draw: bool
) -> dict[str, Callable[[str], str]]:
    """What gives a section's text, by page, and draws its pictures if it is to.

    ``numbers`` computes those of docs/scaling.md; called once, if that page is made.
    """

    def show(section: Section) -> str:
        return render(root, section, draw=draw)

    def page(
        known: Mapping[str, Section], other: Callable[[str], str] | None = None
    ) -> Callable[[str], str]:
        return lambda name: show(known[name]) if name in known or not other else other(name)

    computed = functools.cache(numbers)
    return {
        "README.md": page({"devices": DEVICES}),
        "docs/performance.md": page(_PERFORMANCE, lambda name: show(benchmark(name))),
        "docs/reproduction.md": page(
            {**COMPILED, **TREES, "lm": DECODER_ONLY}, lambda name: show(reproduction(name))
        ),
        "docs/families.md": page(COMPILED, lambda name: show(benchmark(name))),
        "docs/trees.md": page({**TREES, "greedy": runs(TREE_RUNS, _TREE_ROWS)}),
        "docs/beams.md": page(BEAMS),
        "docs/rules.md": page(RULES),
        "docs/drafts.md": page(DRAFTS, lambda name: {"training": training}[name](root)),
        "docs/distillation.md": lambda name: alphas(root, name, draw=draw),
        "docs/guides/execution.md": page({"control": CONTROL}),
        "docs/scaling.md": page(COMPILED, lambda name: scaling.section(computed(), name)),
        # The last: it tells which of the other pages show a folder.
        "results/README.md": lambda name: folders.table(root),
    }
