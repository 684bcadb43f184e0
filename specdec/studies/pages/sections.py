"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.measure.tables import markdown
from specdec.studies import paper_tables, scaling
from specdec.studies.benchmarks import plots, report
from specdec.studies.pages import (
    beam_pages,
    compiled_pages,
    control_pages,
    distillation_pages,
    draft_pages,
    tree_pages,
)
from specdec.studies.pages.files import BEFORE, PageError, Result, read_json

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
_SPREAD = "**{0[median]:.2f}×** ({0[low]:.2f} to {0[high]:.2f})"
# Name in the table, key, how its value is written. A null value is a dash.
_ROWS = (
    ("γ", "gamma", "{}"),
    ("texts", "num_examples", "{:,}"),
    ("tokens", "num_tokens", "{:,}"),
    ("α", "alpha", "{:.3f}"),
    ("acceptance rate", "acceptance_rate", "{:.3f}"),
    ("draft utilization", "draft_utilization", "{:.3f}"),
    ("block efficiency", "block_efficiency", "{:.2f}"),
    ("cost ratio c", "cost_ratio", "{:.3f}"),
    ("verify ratio v", "verify_ratio", "{:.2f}"),
    ("ms per token, autoregressive", "ms_per_token.autoregressive", "{:.2f}"),
    ("ms per token, speculative", "ms_per_token.speculative", "{:.2f}"),
    ("**speedup, measured** (range)", "spread.measured_speedup", _SPREAD),
    ("speedup, predicted", "predicted_speedup_whole", "{:.2f}×"),
    ("without encoders, measured", "spread.measured_speedup_decoder", _SPREAD),
    ("without encoders, predicted", "predicted_speedup", "{:.2f}×"),
    ("without encoders, Theorem 3.8 (v = 1)", "predicted_speedup_thm38", "{:.2f}×"),
    ("texts that differ from plain decoding", "greedy_mismatches", "{}"),
    ("the same, width-matched", "greedy_mismatches_width_matched", "{}"),
    ("BLEU", "quality.bleu", "{:.1f}"),
)
_FEW_BITS_ROWS = (
    *_ROWS,
    ("chrF", "quality.chrf", "{:.1f}"),
    ("agreement with the full weights (α)", "agreement.alpha", "{:.3f}"),
)
_TREE_ROWS = tuple(
    row
    for row in _ROWS
    if row[1]
    in (
        "num_examples", "num_tokens", "block_efficiency", "verify_ratio",
        "spread.measured_speedup", "spread.measured_speedup_decoder", "predicted_speedup",
        "greedy_mismatches", "greedy_mismatches_width_matched",
    )
)  # fmt: skip


def _shown(result: Result, key: str, source: str, form: str = "{}") -> str:
    """The value at a dotted key; a dash where it, or what should hold it, is null."""
    value: Any = result
    for part in key.split("."):
        if value is None:
            break
        if part not in value:
            raise PageError(f"{source} has no {key!r}.")
        value = value[part]
    return "–" if value is None else form.format(value)


# README's columns: whose runs, where, and the ending of the runs' names. Its rows: of which runs,
# and what :data:`_ROWS` has.
_COMPARED = {
    "greedy, before": ("Before:", BEFORE, ""),
    "greedy, after": ("After:", "results", ""),
    "sampled, before": ("Before:", BEFORE, "_t1"),
    "sampled, after": ("After:", "results", "_t1"),
}
_COMPARED_ROWS = (
    ("ende_tatoeba_apart", "new sentences: α", "alpha", "{:.3f}"),
    ("ende_tatoeba_apart", "new sentences: BLEU", "quality.bleu", "{:.1f}"),
    ("ende_tatoeba_test", "test split: α", "alpha", "{:.3f}"),
    ("ende_tatoeba_test", "test split: BLEU", "quality.bleu", "{:.1f}"),
    ("ende_tatoeba_test", "c", "cost_ratio", "{:.3f}"),
    ("ende_tatoeba_test", "v", "verify_ratio", "{:.2f}"),
    ("ende_tatoeba_test", "decoder speedup, predicted", "predicted_speedup", "{:.2f}×"),
    ("ende_tatoeba_test", "decoder speedup, measured", "measured_speedup_decoder", "{:.2f}×"),
    ("ende_tatoeba_test", "whole speedup, measured", "measured_speedup", "**{:.2f}×**"),
)


def comparison(root: Path) -> str:
    """The bundled pair, before and after mutual learning, with the machines.

    Raises:
      PageError: results or a key of them are missing, or a file is damaged.
    """
    read = functools.cache(functools.partial(read_json, root))
    lines, machines = [], {"Before:": set(), "After:": set()}
    for run, row, key, form in _COMPARED_ROWS:
        line = [row]
        for pair, directory, ending in _COMPARED.values():
            source = f"{directory}/{run}{ending}/results.json"
            line.append(_shown(read(source), key, source, form))
            machines[pair].add(_shown(read(source), "device", source))
        lines.append(line)
    same = machines["Before:"] == machines["After:"]
    measured = {"Measured on": machines["After:"]} if same else machines
    where = " ".join(f"{pair} {'; '.join(sorted(each))}." for pair, each in measured.items())
    return f"{markdown(['', *_COMPARED], lines, numbers=True)}\n\n{where}"


def runs_table(
    root: Path, directory: str = "results", to_root: str = "", *,
    columns: Mapping[str, str] = RUNS, lines: Sequence[tuple[str, str, str]] = _ROWS,
) -> str:  # fmt: skip
    """Runs, one column each, and where their numbers come from.

    The first of the ``columns`` must be in ``directory``; ``to_root`` leads from the page to the
    root.

    Raises:
      PageError: the first run's results or a key are missing, or a file is damaged.
    """
    results, runs, command = {}, {}, "python scripts/decode.py --gin_file=configs/experiments"
    for run in columns:
        name = f"{directory}/{run}/results.json"
        if not runs or (root / name).is_file():
            remedy = f"{command}/{run}.gin --output_dir={directory}/{run}"
            results[name], runs[name] = read_json(root, name, remedy), run
    rows = [
        [name, *(_shown(result, key, source, form) for source, result in results.items())]
        for name, key, form in lines
    ]
    table = markdown(["", *(columns[run] for run in runs.values())], rows, numbers=True)
    sources = ", ".join(f"[{run}]({to_root}{source})" for source, run in runs.items())
    keys = ("device", "dtype", "batch_size")
    settings = {
        "{}, {}, batch size {}".format(*(_shown(result, key, source) for key in keys))
        for source, result in results.items()
    }
    return f"{table}\n\nFrom {sources}. {'; '.join(sorted(settings))}."


_QUANTITIES: Mapping[str, Callable[[Result], int]] = {
    "batch size": lambda w: w["batch_size"],
    "input tokens per row": lambda w: w["input_tokens"] // w["num_rows"],
    "output tokens per row": lambda w: w["systems"][0]["num_tokens"] // w["num_rows"],
}


def benchmark(root: Path, name: str, *, draw: bool) -> str:
    """results/benchmark_NAME: its table, its picture (drawn if it is to be), and its command.

    Of a configuration that has no results yet, only the command.
    """
    source, config = f"results/benchmark_{name}", f"configs/studies/benchmarks/{name}.gin"
    if (root / config).is_file() and not (root / source).is_dir():
        return f"Not run yet: `python scripts/benchmark.py --gin_file={config}`"
    results = read_json(root, f"{source}/results.json")
    workloads, file = results["workloads"], f"performance_{name}.svg"
    path, caption = root / "docs" / "images" / file, "Milliseconds per token, by system"
    if len(workloads) > 1:
        out = [markdown(report.SWEEP_COLUMNS, report.sweep_rows(workloads), numbers=True)]
        # A picture is against the one quantity that differs between all of them.
        values = {name: set(map(value, workloads)) for name, value in _QUANTITIES.items()}
        varying = [name for name in values if len(values[name]) == len(workloads)]
        caption = f"Tokens per second against {varying[0]}" if len(varying) == 1 else ""
        if caption and draw:
            plots.sweep(workloads, _QUANTITIES[varying[0]], varying[0], path)
    else:
        (result,) = workloads
        rows = markdown(report.COLUMNS, report.rows(result), numbers=True)
        out = [f"**{report.title(result)}**", "", rows]
        if result["breakdown"] is not None:
            out += ["", "```", *report.breakdown_lines(result["breakdown"]), "```"]
        if draw:
            plots.systems(result, path)
    picture = [f"![{caption}](images/{file})"] if caption else []
    described = (
        f"[{source}](../{source}/results.json): {results['device']}, {results['threads']} threads, "
        f"{results['repetitions']} repetitions. `{results['command']}`"
    )
    return "\n".join([*out, "", *picture, "", described])


_FIGURES = {
    1: "A decode, one line per target call: accepted, rejected and corrected tokens",
    2: "Expected tokens per target call, by alpha (Equation 1)",
    3: "The best gamma, by alpha and c",
    4: "Speedup and arithmetic operations, by alpha, at c = 0",
    5: "The calls of a decode with gamma 7, with gamma 3 and without a draft, on one time axis",
}


def reproduction(root: Path, name: str) -> str:
    """results/reproduction_NAME: its tables, and the figures beside its summary."""
    directory = f"results/reproduction_{name}"
    content = read_json(root, f"{directory}/summary.json")
    picture = "**Figure {0}.** {1}.\n\n![{1}](../{2}/figures/figure_{0}.svg)"
    # Figure 1 is of a text from nothing, as the paper's.
    indices = {1: "results/reproduction_lm"}
    pictures = [
        picture.format(number, caption, indices.get(number, directory))
        for number, caption in _FIGURES.items()
    ]
    source = f"[summary.json](../{directory}/summary.json): {content['device']}. "
    source += f"`{content['command']}`"
    return "\n\n".join([paper_tables.page(content).rstrip(), "## Figures", *pictures, source])


# Results of Table 3's studies; those of the last ones are of decoder-only models.
_TABLE_3 = ("small", "lm", "dialog")


def decoder_only(root: Path) -> str:
    """Table 3 from three results/reproduction_*, and the speeds of those of GPTs."""
    names = [f"results/reproduction_{each}/summary.json" for each in _TABLE_3]
    contents = [read_json(root, each) for each in names]
    studies = [study for content in contents[1:] for study in content["studies"].values()]
    sources = (
        f"[summary.json](../{name}): {content['device']}. `{content['command']}`"
        for name, content in zip(names[1:], contents[1:], strict=True)
    )
    return "\n\n".join([
        "## Table 3: alpha by target and draft", paper_tables.table_3(contents),
        "The paper's:", paper_tables.paper_table_3(),
        "## Decoder-only models: measured speedups", paper_tables.table_2(studies),
        "## Decoder-only models: block verification", paper_tables.block_table(studies),
        *sources,
    ])  # fmt: skip


# Sections of docs/performance.md with the bundled pair's runs, and where these are.
_RUNS_SECTIONS = {
    "runs": "results",
    "before-mutual-learning": BEFORE,
}


def sections(
    root: Path, numbers: Callable[[], Result], *, draw: bool
) -> dict[str, Callable[[str], str]]:
    """What gives a section's text, by page, and draws its pictures if it is to.

    ``numbers`` computes those of docs/scaling.md; called once, if that page is made.
    """

    def performance(name: str) -> str:
        if name == "comparison":
            return comparison(root)
        if name == "few-bits":
            return runs_table(root, to_root="../", columns=FEW_BITS, lines=_FEW_BITS_ROWS)
        if name in compiled_pages.SECTIONS:
            return compiled_pages.section(root, name)
        if name in _RUNS_SECTIONS:
            return runs_table(root, _RUNS_SECTIONS[name], "../")
        return benchmark(root, name, draw=draw)

    def trees(name: str) -> str:
        return tree_pages.SECTIONS[name](root)

    def reproduced(name: str) -> str:
        if name in tree_pages.SECTIONS:
            return trees(name)
        if name in compiled_pages.SECTIONS:
            return compiled_pages.section(root, name)
        return decoder_only(root) if name == "lm" else reproduction(root, name)

    def tree_runs() -> str:
        return runs_table(root, to_root="../", columns=TREE_RUNS, lines=_TREE_ROWS)

    def readme(name: str) -> str:
        del name  # There is one.
        picture = root / "docs" / "images" / "devices.svg" if draw else None
        return compiled_pages.devices(root, picture=picture)

    def scaled(name: str) -> str:
        if name in compiled_pages.SECTIONS:
            return compiled_pages.section(root, name)
        return scaling.section(computed(), name)

    computed = functools.cache(numbers)
    return {
        "README.md": readme,
        "docs/performance.md": performance,
        "docs/reproduction.md": reproduced,
        "docs/trees.md": lambda name: tree_runs() if name == "greedy" else trees(name),
        "docs/beams.md": lambda name: beam_pages.SECTIONS[name](root),
        "docs/drafts.md": lambda name: draft_pages.SECTIONS[name](root),
        "docs/distillation.md": lambda name: distillation_pages.alphas(root, name, draw=draw),
        "docs/guides/execution.md": lambda name: control_pages.measured(root),
        "docs/scaling.md": scaled,
    }
