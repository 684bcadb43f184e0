"""Tables of decodes compiled for accelerators, from ``configs/studies/accelerators.gin``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.accelerators import chips
from specdec.core import tree_shapes
from specdec.core.theory import expected_tokens
from specdec.measure.tables import table
from specdec.studies import compiled_t5x
from specdec.studies.benchmarks import plots
from specdec.studies.pages.files import Result, read_json, read_study, sources

_RESULTS, _T5X = "results/accelerators", "results/t5x"
_ALPHA = "0.75"  # The paper's of T5-small under T5-XXL, English to German, greedy.
_MODELS = {
    "gpu_xxl": "T5-XXL + T5-small", "t5_large": "T5-large + T5-small",
    "quickstart": "the bundled pair, its own α",
}  # fmt: skip
Cell = str | Callable[[Any], str]
Columns = Sequence[tuple[str, Cell]]


def _millions(part: Result | None) -> str:
    return "–" if part is None or part["cycles"] is None else f"{part['cycles'] / 1e6:.2f}"


def _reports(content: Result, study: str) -> Iterator[Result]:
    """A study's decodes, with what each was asked for."""
    for found in content["compiled"][study]["compiled"].values():
        yield {**found["settings"], **found}


def _of(name: str, form: Callable[[Any], str]) -> Callable[[Result], str]:
    """A cell of a part; a dash where that is none."""
    return lambda row: "–" if row.get(name) is None else form(row[name])


def _ms(part: Result) -> str:
    return f"{part['ms']:.3g}" if part["ms"] < 1 else f"{part['ms']:.2f}"


def _shape(row: Result) -> str:
    what = f"γ {row['gamma']}" if row["tree"] is None else "tree " + "-".join(map(str, row["tree"]))
    sampled = ", temperature 1" if row["temperature"] else ""
    rows = f", {row['batch_size']} rows" if row["batch_size"] > 1 else ""
    return f"{row['target']} + {row['draft']}, {what}{sampled}{rows}"


def _of_floor(row: Result) -> str:
    """A plain step over the time that its bytes take."""
    step, hardware = row["plain_step"], chips.find(row["topology"]).chip.hardware
    return f"{step['ms'] / (1e3 * step['bytes'] / hardware.bandwidth):.2f}"


def _whole(row: Result) -> str:
    speedups = row["speedup_at"]
    return "–" if speedups is None else f"{speedups[_ALPHA]:.2f}×"


def _asked(row: Result) -> Result:
    """The report with the tree as it was asked for."""
    return {**row, "tree": row["settings"]["tree"]}


def steps(content: Result) -> str:
    """TPUs: a plain step and its parts, and whole decodes."""
    rows = [
        _asked(row) for row in _reports(content, "steps") if not row["topology"].startswith("h")
    ]
    columns: Columns = [
        ("chip", "{topology}"), ("", _shape),
        ("plain step, M cycles", lambda row: _millions(row["plain_step"])),
        ("ms a token", _of("plain_step", _ms)),
        ("of its bytes' time", _of_floor),
        ("draft step, M cycles", lambda row: _millions(row["draft_step"])),
        ("block, ms", _of("block", _ms)),
        ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"),
        (f"whole decode at α {_ALPHA}", _whole),
        ("temporaries, GB", lambda row: f"{row['temporary_bytes'] / 1e9:.2f}"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)


def launches(content: Result) -> str:
    """GPUs: kernels and graphs."""
    rows = [_asked(row) for row in _reports(content, "steps") if row["topology"].startswith("h")]
    columns: Columns = [
        ("GPU", "{topology}"), ("", _shape),
        ("kernels of a plain step", "{plain_step[kernels]}"),
        ("of a draft step", "{draft_step[kernels]}"),
        ("of a block", "{block[kernels]}"),
        ("graphs of the loop", "{findings[graphs]}"),
        ("a plain step reads in, ms", _of("plain_step", _ms)),
        ("a block", _of("block", _ms)),
        ("temporaries, GB", lambda row: f"{row['temporary_bytes'] / 1e9:.2f}"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)


def meshes(content: Result) -> str:
    """Targets over several chips, beside what does not fit one."""
    rows = [_asked(row) for row in map(_fitting, _reports(content, "meshes"))]

    def if_fits(cell: Cell) -> Callable[[Result], str]:
        def of(row: Result) -> str:
            if row["does_not_fit"]:
                return "–"
            return cell.format_map(row) if isinstance(cell, str) else cell(row)

        return of

    columns: Columns = [
        ("chips", "{chip}"), ("", lambda row: f"{_shape(row)}, {row['dtype']}"),
        ("GB a chip", lambda row: "does not fit" if row["does_not_fit"] else _gigabytes(row)),
        ("plain step, M cycles", if_fits(lambda row: _millions(row["plain_step"]))),
        ("ms", if_fits(_of("plain_step", _ms))),
        ("of its bytes' time", if_fits(_of_floor)),
        ("collectives", if_fits(_collectives)),
        ("block, ms", if_fits(_of("block", _ms))),
        ("c", if_fits("{cost_ratio:.3f}")), ("v", if_fits("{verify_ratio:.2f}")),
        (f"whole decode at α {_ALPHA}", if_fits(_whole)),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)


def _fitting(row: Result) -> Result:
    return {"does_not_fit": "", **row}


def _gigabytes(row: Result) -> str:
    return f"{(row['argument_bytes'] + row['temporary_bytes']) / 1e9:.2f}"


def _collectives(row: Result) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in row["plain_step"]["collectives"].items())


def table_2(content: Result) -> str:
    """The paper's rows on its own chip, by the compiler, and with the best chain or tree."""
    study = content["compiled"]["paper"]
    names = {"ende": "EnDe", "cnndm": "CNNDM"}
    rows = []
    for task, drafts in study["table_2"].items():
        larger = {int(nodes): found for nodes, found in study["trees"][task].items()}
        for temperatures in drafts.values():
            for temperature, found in temperatures.items():
                about = {"task": names[task], "temperature": temperature[1:], **found}
                rows.append({**about, "best": best(found, larger)})
    columns: Columns = [
        ("task", "{task}"), ("draft", "{report[draft]}"), ("temperature", "{temperature}"),
        ("γ", "{report[gamma]}"), ("α", "{alpha:.2f}"),
        ("c", "{report[cost_ratio]:.3f}"), ("v", "{report[verify_ratio]:.2f}"),
        ("ms a token, plain", lambda row: f"{row['report']['plain_step']['ms']:.2f}"),
        ("speculative", _token_ms),
        ("whole decode, by the compiler", "**{speedup:.2f}×**"),
        ("paper: expected", "{expected:.1f}×"), ("measured", "{empirical:.1f}×"),
        ("best γ", "{best[gamma]}"), ("whole decode", "{best[chain]:.2f}×"),
        ("best tree", "{best[nodes]} guesses, {best[depth]} deep"),
        ("whole decode", "{best[tree]:.2f}×"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)


# Of the rejections that the likeliest guess leaves, what the second likeliest repairs; and so on:
# measured with the bundled pair's small draft, in results/siblings.
REPAIRED = (0.24, 0.13, 0.13, 0.08, 0.08, 0.08, 0.08)
_DEEPEST = 8


def by_rank(alpha: float) -> tuple[float, ...]:
    """p_k, the probability that a position's k-th likeliest guess is the accepted one."""
    found, left = [alpha], 1 - alpha
    for share in REPAIRED:
        found.append(left * share)
        left -= found[-1]
    return tree_shapes.falling(found)


def best(row: Result, larger: Mapping[int, Result]) -> dict[str, Any]:
    """The chain and the tree with the fastest whole decodes, from what parts of blocks cost.

    A level of a draft's tree costs what a guess of its chain does: both fill one tile of a call.

    Args:
      row: of Table 2.
      larger: reports of blocks of so many guesses, of which a call has two tiles or more.
    """
    report, alpha = row["report"], row["alpha"]
    guess = report["drafting"]["ms"] / report["gamma"]
    calls = {7: report["block"]["ms"] - report["drafting"]["ms"]}
    calls |= {n: each["block"]["ms"] - each["drafting"]["ms"] for n, each in larger.items()}
    tokens, ranks = report["tokens"], by_rank(alpha)
    plain = report["plain_start"]["ms"] + tokens * report["plain_step"]["ms"]

    def speedup(nodes: int, depth: int, emitted: float) -> float:
        call = next(ms for most, ms in sorted(calls.items()) if nodes <= most)
        return plain / (report["start"]["ms"] + tokens / emitted * (call + depth * guess))

    chains = [(speedup(g, g, expected_tokens(alpha, g)), g) for g in range(1, 16)]
    shapes = [(n, d) for n in calls for d in range(1, min(_DEEPEST, n) + 1)]
    trees = [
        (speedup(n, d, tree_shapes.expected_tokens(ranks, parents)), n, d)
        for n, d in shapes
        for parents in [tree_shapes.best_parents(ranks, n, d)]
    ]
    (chain, gamma), (tree, nodes, depth) = max(chains), max(trees)
    return {"chain": chain, "gamma": gamma, "tree": tree, "nodes": nodes, "depth": depth}


def _token_ms(row: Result) -> str:
    tokens = expected_tokens(row["alpha"], row["report"]["gamma"])
    return f"{row['report']['block']['ms'] / tokens:.2f}"


def t5x(content: Result) -> str:
    """T5X's networks through the same compiler."""
    (part,) = content["compiled"].values()
    named: dict[str, dict[str, Any]] = {}
    for targets in part["t5x"].values():
        for networks in targets.values():
            for found in networks.values():
                asked = found["settings"]
                at = named.setdefault(asked["chip"], {}).setdefault(asked["target"], {})
                at[asked["network"]] = found
    return compiled_t5x.page(named)


SECTIONS: Mapping[str, tuple[str, Callable[[Result], str]]] = {
    "tpu": (_RESULTS, steps),
    "h100-compiled": (_RESULTS, launches),
    "meshes-compiled": (_RESULTS, meshes),
    "table-2-compiled": (_RESULTS, table_2),
    "t5x-compiled": (_T5X, t5x),
}


def section(root: Path, name: str) -> str:
    """A section of a page in ``docs``, with where its numbers are from.

    Raises:
      PageError: results are missing.
    """
    directory, made = SECTIONS[name]
    content = read_study(root, directory)
    return f"{made(content)}\n\n{sources([directory], [content])}"


def devices(root: Path, *, picture: Path | None = None) -> str:
    """README's table: each kind of device's speedup, and how it is known.

    Args:
      picture: where it is drawn, if it is to be.

    Raises:
      PageError: results are missing.
    """
    compiled = map(_asked, _reports(read_study(root, _RESULTS), "steps"))
    (tpu,) = (row for row in compiled if _shape(row) == "T5-XXL + T5-small, γ 7" and
              row["topology"] == "v4")  # fmt: skip
    plain = tpu["plain_step"]["ms"] + tpu["plain_start"]["ms"] / tpu["tokens"]
    rows = [{
        "device": "TPU v4", "models": f"T5-XXL + T5-small, γ 7, α {_ALPHA}", "plain": plain,
        "speculative": plain / tpu["speedup_at"][_ALPHA], "speedup": tpu["speedup_at"][_ALPHA],
        "how": "estimated by the TPU compiler",
    }]  # fmt: skip
    for name in ("gpu_xxl", "t5_large", "quickstart"):
        source = f"results/benchmark_{name}/results.json"
        content = read_json(root, source)
        (found,) = content["workloads"]
        times = {each["system"]: each for each in found["systems"]}
        forced = found["forced_alpha"]
        rows.append({
            "device": content["device"].removeprefix("1 x "),
            "models": f"{_MODELS[name]}, γ {found['gamma']}" + (f", α {forced}" if forced else ""),
            "plain": times["specdec autoregressive"]["ms_per_token"]["median"],
            "speculative": times["specdec speculative"]["ms_per_token"]["median"],
            "speedup": times["specdec speculative"]["speedup"]["median"], "how": "measured",
        })  # fmt: skip
    if picture is not None:
        plots.devices(rows, picture)
    columns: Columns = [
        ("device", "{device}"), ("target + draft", "{models}"),
        ("ms a token, plain", lambda row: _ms({"ms": row["plain"]})),
        ("speculative", lambda row: _ms({"ms": row["speculative"]})),
        ("speedup", "**{speedup:.2f}×**"), ("", "{how}"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)
