"""Tables of decodes compiled for accelerators, from ``configs/reproduce/accelerators.gin``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.accelerators import chips
from specdec.benchmarks import plots
from specdec.core.theory import expected_tokens
from specdec.measure.tables import table
from specdec.reproduction import compiled_t5x
from specdec.reproduction.page_files import Result, read_json, read_study, sources

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
        ("compile, s", lambda row: f"{row['compile_seconds']:.0f}"),
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
    rows = [
        {"task": task, "draft": draft, "temperature": temperature[1:], **found}
        for task, drafts in content["compiled"]["paper"]["table_2"].items()
        for draft, temperatures in drafts.items()
        for temperature, found in temperatures.items()
    ]
    names = {"ende": "EnDe", "cnndm": "CNNDM"}
    columns: Columns = [
        ("task", lambda row: names[row["task"]]),
        ("draft", lambda row: row["report"]["draft"]), ("temperature", "{temperature}"),
        ("γ", "{report[gamma]}"), ("α", "{alpha:.2f}"),
        ("c", "{report[cost_ratio]:.3f}"), ("v", "{report[verify_ratio]:.2f}"),
        ("ms a token, plain", lambda row: f"{row['report']['plain_step']['ms']:.2f}"),
        ("speculative", _token_ms),
        ("whole decode, by the compiler", "**{speedup:.2f}×**"),
        ("paper: expected", "{expected:.1f}×"), ("measured", "{empirical:.1f}×"),
        ("best γ or tree", _best), ("whole decode", "{best[speedup]:.2f}×"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)


def _token_ms(row: Result) -> str:
    tokens = expected_tokens(row["alpha"], row["report"]["gamma"])
    return f"{row['report']['block']['ms'] / tokens:.2f}"


def _best(row: Result) -> str:
    best = row["best"]
    if best["parents"] is None:
        return f"γ {best['gamma']}"
    return f"tree of {best['nodes']}, {best['depth']} deep"


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
        "speculative": plain / tpu["speedup_at"][_ALPHA], "how": "estimated by the TPU compiler",
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
            "how": "measured",
        })  # fmt: skip
    for row in rows:
        row["speedup"] = row["plain"] / row["speculative"]
    if picture is not None:
        plots.devices(rows, picture)
    columns: Columns = [
        ("device", "{device}"), ("target + draft", "{models}"),
        ("ms a token, plain", lambda row: _ms({"ms": row["plain"]})),
        ("speculative", lambda row: _ms({"ms": row["speculative"]})),
        ("speedup", "**{speedup:.2f}×**"), ("", "{how}"),
    ]  # fmt: skip
    return table(columns, rows, numbers=True)
