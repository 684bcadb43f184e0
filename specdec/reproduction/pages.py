"""The tables and pictures of README and docs, from committed results files.

The function of a page writes each section between <!-- NAME --> and <!-- /NAME -->. The rest of
the page stays as it is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.benchmarks import plots, report
from specdec.core.files import write_text
from specdec.measure.tables import markdown
from specdec.reproduction import paper_tables, scaling

Result = Mapping[str, Any]
_SECTION = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


class PageError(ValueError):
    """A results file or a page is not as it should be."""


def rewrite(path: Path, section: Callable[[str], str], *, check: bool) -> bool:
    """Writes a page's sections, unless it is to ``check`` only; whether they changed.

    Raises:
      PageError: the page has no section, or a results file is missing or damaged.
    """
    old = path.read_text(encoding="utf-8")
    if not _SECTION.search(old):
        raise PageError(f"{path} has no section between <!-- NAME --> and <!-- /NAME -->.")
    new = _SECTION.sub(lambda m: f"<!-- {m[1]} -->\n{section(m[1])}\n<!-- /{m[1]} -->", old)
    if new != old and not check:
        write_text(path, new)
    return new != old


def read_json(root: Path, name: str, remedy: str = "") -> Any:
    """A results file; raises PageError if it is missing or not JSON."""
    try:
        return json.loads((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PageError(f"{name} is missing{remedy and f'; make it with: {remedy}'}.") from None
    except ValueError as error:
        raise PageError(f"{name} is not valid JSON ({error}).") from None


# The runs of the bundled pair: directories of results, each with the name of its column.
RUNS = {
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


_BEFORE = "results/before_mutual"
# README's columns (before and after in turn), and its rows in the form of _ROWS.
_COMPARED = {
    "greedy, before": f"{_BEFORE}/ende_tatoeba_test",
    "greedy, after": "results/ende_tatoeba_test",
    "sampled, before": f"{_BEFORE}/ende_tatoeba_test_t1",
    "sampled, after": "results/ende_tatoeba_test_t1",
}
_COMPARED_ROWS = (
    ("α", "alpha", "{:.3f}"),
    ("c", "cost_ratio", "{:.3f}"),
    ("v", "verify_ratio", "{:.2f}"),
    ("decoder speedup, predicted", "predicted_speedup", "{:.2f}×"),
    ("decoder speedup, measured", "measured_speedup_decoder", "{:.2f}×"),
    ("whole speedup, measured", "measured_speedup", "**{:.2f}×**"),
    ("BLEU", "quality.bleu", "{:.1f}"),
)


def comparison(root: Path) -> str:
    """The bundled pair on its test split, before and after mutual learning, with the machines.

    Raises:
      PageError: results or a key of them are missing, or a file is damaged.
    """
    results = {}
    for directory in _COMPARED.values():
        name = f"{directory}/results.json"
        results[name] = read_json(root, name)
    rows = [
        [name, *(_shown(result, key, source, form) for source, result in results.items())]
        for name, key, form in _COMPARED_ROWS
    ]
    devices = [_shown(result, "device", source) for source, result in results.items()]
    before, after = set(devices[::2]), set(devices[1::2])
    machines = f"Before: {'; '.join(sorted(before))}. After: {'; '.join(sorted(after))}."
    return f"{markdown(['', *_COMPARED], rows, numbers=True)}\n\n{machines}"


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
    """results/benchmark_NAME: its table, its picture (drawn if it is to be), and its command."""
    source = f"results/benchmark_{name}"
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
    pictures = [picture.format(*figure, directory) for figure in _FIGURES.items()]
    source = f"[summary.json](../{directory}/summary.json): {content['device']}. "
    source += f"`{content['command']}`"
    return "\n\n".join([paper_tables.page(content).rstrip(), "## Figures", *pictures, source])


_SIBLINGS = "results/siblings/summary.json"
_DRAFTS = {"quickstart": "bundled draft", "quickstart/draft_small": "small draft"}
_SIBLING_RULES = {
    "recursive": "recursive, without replacement (default); traversal",
    "optimum": "**at most, without replacement**",
    "recursive_independent": "recursive, independent",
    "kseq": "K-SEQ, independent",
    "optimum_independent": "**at most, independent**",
    "likeliest": "point masses, the K likeliest tokens",
}
_SIBLING_RANKS = (
    ("1", "recursive", "without replacement, temperature 1"),
    ("1", "likeliest", "point masses, temperature 1"),
    ("0", "likeliest", "point masses, temperature 0"),
)


def _measured(root: Path, kind: str) -> Result:
    """What a configuration of ``configs/reproduce`` measured, of ``kind`` "siblings" or "trees"."""
    path = f"results/{kind}/summary.json"
    remedy = f"python scripts/reproduce.py --gin_file=configs/reproduce/{kind}.gin"
    content = read_json(root, path, remedy)
    try:
        return content[kind]["EnDe"] | {"source": content}
    except KeyError as error:
        raise PageError(f"{path} has no {error}.") from None


def one_position(root: Path) -> str:
    """Acceptance of 1, 2, 4 and 8 guesses of one position by rule, beside the bounds.

    Raises:
      PageError: the results are missing or damaged.
    """
    measured = _measured(root, "siblings")
    found = [measured["t1"]["drafts"][draft] for draft in _DRAFTS]
    counts = list(found[0]["acceptance"]["recursive"])
    columns = [f"{name}, K = {k}" for name in _DRAFTS.values() for k in counts]
    rows = [
        [name, *(f"{each['acceptance'][rule][k]['mean']:.3f}" for each in found for k in counts)]
        for rule, name in _SIBLING_RULES.items()
    ]
    of_best = [each["of_optimum"][k]["mean"] for each in found for k in counts]
    rows.insert(2, ["default, of the most", *(f"{100 * share:.1f} %" for share in of_best)])
    halves = [
        (shown["interval"][1] - shown["interval"][0]) / 2
        for each in found for by_count in each["acceptance"].values() for shown in by_count.values()
    ]  # fmt: skip
    first, source = found[0], measured["source"]
    return (
        f"{markdown(['rule', *columns], rows, numbers=True)}\n\n"
        f"Temperature 1, {first['num_tokens']:,} tokens of {first['num_texts']} texts that the "
        f"target generated. Intervals of 95 %, clustered by text, are at most "
        f"±{max(halves):.3f}. From [summary.json](../{_SIBLINGS}): {source['device']}. "
        f"`{source['command']}`"
    )


def by_rank(root: Path) -> str:
    """How likely guess k of a position is accepted where the earlier ones were rejected.

    Raises:
      PageError: the results are missing or damaged.
    """
    measured = _measured(root, "siblings")
    rows = [
        [f"{name}, {title}", *(f"{rank['mean']:.3f}" for rank in ranks)]
        for draft, name in _DRAFTS.items()
        for temperature, rule, title in _SIBLING_RANKS
        for ranks in [measured[f"t{temperature}"]["drafts"][draft]["by_rank"][rule]]
    ]
    most = max(len(row) for row in rows) - 1
    rows = [row + ["–"] * (most + 1 - len(row)) for row in rows]
    return markdown(["guess", *map(str, range(1, most + 1))], rows, numbers=True)


_TREE_RUNS = "results/trees/summary.json"
_SETTINGS = [(draft, t) for draft in ("quickstart", "quickstart_draft_small") for t in (0, 1)]


def _best_of(shapes: Result, chains: bool) -> Result:
    kinds = [each for name, each in shapes.items() if name.startswith("chain") == chains]
    return max(kinds, key=lambda each: each["block_efficiency"])


def tree_shapes(root: Path) -> str:
    """Tokens a target call by shape, draft and temperature.

    Raises:
      PageError: the results are missing or damaged.
    """
    measured = _measured(root, "trees")
    found = [measured[draft][f"t{t}"]["shapes"] for draft, t in _SETTINGS]
    rows = []
    for name in dict.fromkeys(name for shapes in found for name in shapes):
        cells = [
            f"{shapes[name]['block_efficiency']:.2f} "
            f"({shapes[name]['interval'][0]:.2f} to {shapes[name]['interval'][1]:.2f})"
            if name in shapes
            else "–"
            for shapes in found
        ]
        nodes = next(shapes[name]["nodes"] for shapes in found if name in shapes)
        rows.append([name, str(nodes), *cells])
    ratios = [
        _best_of(shapes, False)["block_efficiency"] / _best_of(shapes, True)["block_efficiency"]
        for shapes in found
    ]
    rows.append(["**best tree over best chain**", "", *(f"**{ratio:.2f}**" for ratio in ratios)])
    names = {"quickstart": "bundled draft", "quickstart_draft_small": "small draft"}
    columns = [f"{names[draft]}, temperature {t}" for draft, t in _SETTINGS]
    source = measured["source"]
    return (
        f"{markdown(['shape', 'guesses', *columns], rows, numbers=True)}\n\n"
        f"Intervals of 95 %, by text. From [summary.json](../{_TREE_RUNS}): {source['device']}. "
        f"`{source['command']}`"
    )


def tree_costs(root: Path) -> str:
    """What calls cost by their tokens, and the speedups that follow; compilation.

    Raises:
      PageError: the results are missing or damaged.
    """
    measured = _measured(root, "trees")
    costs = measured["quickstart"]["costs"]
    verify = {int(size): each["median"] for size, each in costs["verify_ratio"].items()}
    rows = [["v", *(f"{v:.2f}" for v in verify.values())]]
    table = markdown(["tokens of a call", *map(str, verify)], rows, numbers=True)
    level = {name: each["median"] for name, each in costs["level"].items()}
    lines = []
    for draft, t in _SETTINGS:
        for chains in (True, False):
            best = _best_of(measured[draft][f"t{t}"]["shapes"], chains)
            c = max(0.0, level["chain" if chains else "tree 4-1-1-1"])
            v = float(np.interp(best["nodes"] + 1, list(verify), list(verify.values())))
            tokens, drafts = best["block_efficiency"], best["depth"] * c
            lines.append([
                f"{_DRAFTS[draft.replace('_', '/', 1)]}, temperature {t}, best "
                + ("chain" if chains else "tree"),
                f"{tokens:.2f}", f"{tokens / (v + drafts):.2f}", f"{tokens / (1 + drafts):.2f}",
            ])  # fmt: skip
    computed = markdown(["", "tokens a call", "here", "v = 1"], lines, numbers=True)
    seconds = ", ".join(
        f"{name} {sorted(each)[len(each) // 2]:.1f}"
        for name, each in costs["compile_seconds"].items()
    )
    return f"{table}\n\n{computed}\n\nSeconds to compile a decode: {seconds}."


_TREES_SECTIONS = {
    "one-position": one_position,
    "by-rank": by_rank,
    "shapes": tree_shapes,
    "costs": tree_costs,
}

# Sections of docs/performance.md with the bundled pair's runs, and where these are.
_RUNS_SECTIONS = {"runs": "results", "before-mutual-learning": _BEFORE}


def sections(
    root: Path, numbers: Callable[[], Result], *, draw: bool
) -> dict[str, Callable[[str], str]]:
    """What gives a section's text, by page, and draws its pictures if it is to.

    ``numbers`` computes those of docs/scaling.md; called once, if that page is made.
    """

    def performance(name: str) -> str:
        if name == "few-bits":
            return runs_table(root, to_root="../", columns=FEW_BITS, lines=_FEW_BITS_ROWS)
        if name in _RUNS_SECTIONS:
            return runs_table(root, _RUNS_SECTIONS[name], "../")
        return benchmark(root, name, draw=draw)

    computed = functools.cache(numbers)
    return {
        "README.md": lambda name: comparison(root),
        "docs/performance.md": performance,
        "docs/reproduction.md": lambda name: reproduction(root, name),
        "docs/trees.md": lambda name: _TREES_SECTIONS[name](root),
        "docs/scaling.md": lambda name: scaling.section(computed(), name),
    }
