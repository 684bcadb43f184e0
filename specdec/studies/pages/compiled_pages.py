"""Tables of decodes compiled for accelerators, from ``configs/studies/accelerators.gin``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from specdec.compile import chips
from specdec.core import tree_shapes
from specdec.core.theory import expected_tokens
from specdec.studies import compiled_t5x
from specdec.studies.benchmarks import plots
from specdec.studies.pages.files import Result
from specdec.studies.pages.tables import SOURCE, Section, Table, leaves

_ALPHA = "0.75"  # The paper's of T5-small under T5-XXL, English to German, greedy.
_WHOLE = (f"whole decode at α {_ALPHA}", f"{{speedup_at[{_ALPHA}]:.2f}}×")
_MEASURED = {
    "gpu_xxl": "T5-XXL + T5-small", "t5_large": "T5-large + T5-small",
    "quickstart": "the bundled pair, its own α",
}  # fmt: skip
_TASKS = {"ende": "EnDe", "cnndm": "CNNDM"}
# Of what does not fit.
_NOTHING = dict.fromkeys(
    ("plain_step", "block", "cost_ratio", "verify_ratio", "speedup_at", "floor", "collectives")
) | {"memory": "does not fit"}


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _named(row: Result) -> str:
    what = f"γ {row['gamma']}" if row["tree"] is None else "tree " + "-".join(map(str, row["tree"]))
    sampled = ", temperature 1" if row["temperature"] else ""
    rows = f", {row['batch_size']} rows" if row["batch_size"] > 1 else ""
    return f"{row['target']} + {row['draft']}, {what}{sampled}{rows}"


def _rows(content: Result, study: str) -> Iterator[dict[str, Any]]:
    """A study's decodes: what was asked for and what it was found to cost, None if it was not."""
    for found in leaves(content, f"compiled/{study}/compiled/*"):
        row = {**_NOTHING, **found["settings"], **found, "tree": found["settings"]["tree"]}
        row["shape"] = _named(row)
        if step := row["plain_step"]:
            bandwidth = chips.find(row["topology"]).chip.hardware.bandwidth
            kinds = step["collectives"].items()
            row |= {
                "floor": step["ms"] / (1e3 * step["bytes"] / bandwidth),
                "collectives": ", ".join(f"{n} {kind}" for kind, n in kinds),
                "memory": f"{(row['argument_bytes'] + row['temporary_bytes']) / 1e9:.2f}",
            }
            for name in ("plain_step", "block"):
                row[name] = {**row[name], "ms": _ms(row[name]["ms"])}
        yield row


def _slices(content: Result) -> Iterator[Result]:
    """Decodes over slices of several hosts, and what they take at least."""
    for row in _rows(content, "slices"):
        floors = row["floors"]
        least = {name: _ms(floors[name]) for name in ("step_ms", "block_ms")}
        hosts = chips.find(row["chip"]).hosts
        yield {**row, "hosts": hosts, "floors": {**floors, **least}}


def _steps(content: Result, *, gpus: bool = False) -> Iterator[Result]:
    return (row for row in _rows(content, "steps") if row["topology"].startswith("h") == gpus)


def _table_2(content: Result) -> Iterator[Result]:
    """The paper's rows on its own chip, by the compiler, and with the best chain or tree."""
    trees = content["compiled"]["paper"]["trees"]
    for row in leaves(content, "compiled/paper/table_2/{task}/*/t{temperature}"):
        report = row["report"]
        larger = {int(nodes): found for nodes, found in trees[row["task"]].items()}
        tokens = expected_tokens(row["alpha"], report["gamma"])
        token_ms = report["block"]["ms"] / tokens
        yield {**row, "token_ms": token_ms, "best": best(row, larger), "task": _TASKS[row["task"]]}


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
        _, call = min((most, ms) for most, ms in calls.items() if nodes <= most)
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


def _t5x(content: Result) -> str:
    """T5X's networks through the same compiler."""
    named: dict[str, dict[str, Any]] = {}
    for found in leaves(content, "compiled/*/t5x/*/*/*"):
        asked = found["settings"]
        at = named.setdefault(asked["chip"], {}).setdefault(asked["target"], {})
        at[asked["network"]] = found
    return compiled_t5x.page(named)


def _devices(compiled: Result, *measured: Result) -> list[dict[str, Any]]:
    """Each kind of device's speedup, and how it is known."""
    (tpu,) = (
        found for found in compiled["compiled"]["steps"]["compiled"].values()
        if found["topology"] == "v4" and _named(found["settings"]) == "T5-XXL + T5-small, γ 7"
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


def _draw(*contents: Any) -> None:
    *results, path = contents
    plots.devices(_devices(*results), path)


_ACCELERATORS = ["results/accelerators/summary.json"]
DEVICES = Section(
    [*_ACCELERATORS, *(f"results/benchmark_{name}/results.json" for name in _MEASURED)],
    [Table(_devices, [
        ("device", "{device}"), ("target + draft", "{models}"),
        ("ms a token, plain", lambda row: _ms(row["plain"])),
        ("speculative", lambda row: _ms(row["speculative"])),
        ("speedup", "**{speedup:.2f}×**"), ("", "{how}"),
    ])],
    "devices", _draw,
)  # fmt: skip
SECTIONS: Mapping[str, Section] = {
    "tpu": Section(_ACCELERATORS, [Table(_steps, [
        ("chip", "{topology}"), ("", "{shape}"),
        ("plain step, M cycles", "{plain_step[cycles]:.2fM}"), ("ms a token", "{plain_step[ms]}"),
        ("of its bytes' time", "{floor:.2f}"),
        ("draft step, M cycles", "{draft_step[cycles]:.2fM}"), ("block, ms", "{block[ms]}"),
        ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"), _WHOLE,
        ("temporaries, GB", "{temporary_bytes:.2fG}"),
    ]), SOURCE]),
    "h100-compiled": Section(_ACCELERATORS, [Table(functools.partial(_steps, gpus=True), [
        ("GPU", "{topology}"), ("", "{shape}"),
        ("kernels of a plain step", "{plain_step[kernels]}"),
        ("of a draft step", "{draft_step[kernels]}"), ("of a block", "{block[kernels]}"),
        ("graphs of the loop", "{findings[graphs]}"),
        ("a plain step reads in, ms", "{plain_step[ms]}"), ("a block", "{block[ms]}"),
        ("temporaries, GB", "{temporary_bytes:.2fG}"),
    ]), SOURCE]),
    "meshes-compiled": Section(_ACCELERATORS, [Table(lambda content: _rows(content, "meshes"), [
        ("chips", "{chip}"), ("", "{shape}, {dtype}"), ("GB a chip", "{memory}"),
        ("plain step, M cycles", "{plain_step[cycles]:.2fM}"), ("ms", "{plain_step[ms]}"),
        ("of its bytes' time", "{floor:.2f}"), ("collectives", "{collectives}"),
        ("block, ms", "{block[ms]}"), ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"),
        _WHOLE,
    ]), SOURCE]),
    "slices-compiled": Section(["results/slices/summary.json"], [Table(_slices, [
        ("chips", "{chip}"), ("hosts", "{hosts}"), ("mesh", "{data} x {model}"),
        ("", "{shape}, {dtype}"), ("GB a chip", "{memory}"), ("floor", "{floors[bytes]:.2fG}"),
        ("plain step, M cycles", "{plain_step[cycles]:.2fM}"), ("ms", "{plain_step[ms]}"),
        ("floor", "{floors[step_ms]}"), ("of its bytes' time", "{floor:.2f}"),
        ("collectives", "{collectives}"), ("floor", "{floors[collectives]}"),
        ("block, ms", "{block[ms]}"), ("floor", "{floors[block_ms]}"),
        ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"), _WHOLE,
    ]), SOURCE]),
    "families-compiled": Section(["results/families/summary.json"], [Table(
        lambda content: _rows(content, "families"), [
            ("chip", "{topology}"), ("", "{shape}"), ("tokens in", "{settings[input_len]}"),
            ("GB", "{memory}"), ("plain step, ms", "{plain_step[ms]}"),
            ("of its bytes' time", "{floor:.2f}"), ("block, ms", "{block[ms]}"),
            ("c", "{cost_ratio:.3f}"), ("v", "{verify_ratio:.2f}"),
            ("whole decode at α 0.7", "{speedup_at[0.70]:.2f}×"),
        ],
    ), SOURCE]),
    "table-2-compiled": Section(_ACCELERATORS, [Table(_table_2, [
        ("task", "{task}"), ("draft", "{report[draft]}"), ("temperature", "{temperature}"),
        ("γ", "{report[gamma]}"), ("α", "{alpha:.2f}"),
        ("c", "{report[cost_ratio]:.3f}"), ("v", "{report[verify_ratio]:.2f}"),
        ("ms a token, plain", "{report[plain_step][ms]:.2f}"), ("speculative", "{token_ms:.2f}"),
        ("whole decode, by the compiler", "**{speedup:.2f}×**"),
        ("paper: expected", "{expected:.1f}×"), ("measured", "{empirical:.1f}×"),
        ("best γ", "{best[gamma]}"), ("whole decode", "{best[chain]:.2f}×"),
        ("best tree", "{best[nodes]} guesses, {best[depth]} deep"),
        ("whole decode", "{best[tree]:.2f}×"),
    ]), SOURCE]),
    "t5x-compiled": Section(["results/t5x/summary.json"], [_t5x, SOURCE]),
}  # fmt: skip
