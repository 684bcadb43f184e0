"""A benchmark's numbers as JSON and as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.measure.speed import Speed, predict
from specdec.measure.tables import aligned
from specdec.measure.timing import Spread
from specdec.reproduce.benchmarks import starts
from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.harness import Measurement
from specdec.reproduce.benchmarks.systems import SYSTEMS

_SETTINGS = ("batch_size", "gamma", "temperature", "dtype")


def decoder_speed(found: Speed) -> dict[str, float | None]:
    """The decoder's own numbers, without encoders: medians of a run without other systems."""
    blocks = found.blocks
    ratios = found.cost_ratio, found.verify_ratio, found.measured_speedup_decoder
    assert blocks is not None
    c, v, measured = (ratio.median for ratio in ratios if ratio is not None)
    predicted = predict(blocks, found)
    return {
        "alpha": blocks.alpha, "block_efficiency": blocks.block_efficiency, "cost_ratio": c,
        "verify_ratio": v, "predicted_speedup": predicted["predicted_speedup"],
        "counted_speedup": predicted["predicted_speedup_counted"], "measured_speedup": measured,
    }  # fmt: skip


def numbers(
    workload: Workload, measurements: Sequence[Measurement], decoder: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One workload's part of ``results.json``; ``decoder`` is of :func:`decoder_speed`."""

    def system(m: Measurement) -> dict[str, Any]:
        if m.absent is not None:
            return {"system": m.system, "absent": m.absent}
        per_token, size = m.ms_per_token(), SYSTEMS[m.system].at_once or workload.batch_size
        batches = len(workload.inputs) // size
        first = Spread.of(1e3 * seconds / batches for seconds in m.first_token_seconds)
        return dataclasses.asdict(m) | {
            "ms_per_token": dataclasses.asdict(per_token),
            "tokens_per_second": 1e3 / per_token.median,
            "first_token_ms": dataclasses.asdict(first),
            "speedup": dataclasses.asdict(m.speedup_over(measurements[0])),
        }

    return _described(workload, [system(m) for m in measurements], decoder)


def start_numbers(workload: Workload, found: Sequence[starts.Start]) -> dict[str, Any]:
    """One workload's part of ``results.json`` where each repetition was a cold start."""
    return _described(workload, starts.numbers(found), None) | {"new_processes": True}


def _described(
    workload: Workload, systems: list[dict[str, Any]], decoder: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "workload": workload.name, "label": workload.label, "forced_alpha": workload.forced_alpha,
        "beam": workload.beam and dataclasses.asdict(workload.beam),
        "num_rows": len(workload.inputs), "input_tokens": sum(map(len, workload.inputs)),
        **{name: getattr(workload, name) for name in _SETTINGS},
        "systems": systems, "breakdown": decoder,
    }  # fmt: skip


# The columns of a system's table, by formats of its numbers and of ``same``.
_CELLS = (
    ("system", "{system}"), ("ms per token", "{ms_per_token[median]:.3f}"),
    ("(range)", "{ms_per_token[low]:.3f} to {ms_per_token[high]:.3f}"),
    ("tokens/s", "{tokens_per_second:.0f}"), ("first token, ms", "{first_token_ms[median]:.1f}"),
    ("speedup", "{speedup[median]:.2f}"),
    ("(range)", "{speedup[low]:.2f} to {speedup[high]:.2f}"),
    ("load, s", "{load_seconds:.1f}"), ("compile, s", "{compile_seconds:.1f}"),
    ("memory, MB", "{megabytes:.0f}"), ("same rows", "{same}"),
)  # fmt: skip
COLUMNS = [title for title, _ in _CELLS]


def rows(result: Mapping[str, Any]) -> list[list[str]]:
    """The cells of one workload's table, a row a system, in the order of COLUMNS."""
    comparable = result["temperature"] == 0 and result["forced_alpha"] is None
    table = []
    for s in result["systems"]:
        if s.get("absent") is not None:
            table.append([s["system"], f"absent: {s['absent']}", *[""] * (len(COLUMNS) - 2)])
            continue
        same = f"{s['same_rows']}/{result['num_rows']}" if comparable else "–"
        megabytes = s["memory_bytes"] / 1e6
        table.append([form.format(**s, same=same, megabytes=megabytes) for _, form in _CELLS])
    return table


def tables(result: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The headings and the rows of one workload's tables."""
    return starts.tables(result) if result.get("new_processes") else [(COLUMNS, rows(result))]


def sweeps(results: Mapping[str, Any]) -> bool:
    """Whether there are several workloads, and systems in turns on each, of which one guesses."""
    first, *others = results["workloads"]
    guess = any(SYSTEMS[each["system"]].guesses for each in first["systems"])
    return bool(others) and guess and not first.get("new_processes")


def text(result: Mapping[str, Any]) -> str:
    """One workload for a terminal."""
    lines = [title(result)]
    for headings, cells in tables(result):
        # The reason for an absent system is no column's width.
        shown = [row[:2] if row[1].startswith("absent") else row for row in cells]
        lines += ["", *aligned([headings, *shown])]
    if result["breakdown"] is not None:
        lines += ["", decoder_line(result["breakdown"])]
    return "\n".join(lines)


def title(result: Mapping[str, Any]) -> str:
    """Title of a benchmark: its rows, sampling, gamma, batch size and dtype."""
    how = "greedy" if result["temperature"] == 0 else f"temperature {result['temperature']:g}"
    if result.get("beam"):  # Not in results of before there were beams.
        how = f"{result['beam']['num_beams']} beams"
    return (
        f"{result['label']}: {result['num_rows']} rows, {how}, gamma {result['gamma']}, "
        f"batch size {result['batch_size']}, {result['dtype']}"
    )


def decoder_line(b: Mapping[str, Any]) -> str:
    """The decoder alone, and whether it pays."""
    pays = "" if b["predicted_speedup"] >= 1 else " Plain decoding is faster here."
    return (
        f"c {b['cost_ratio']:.3f}, v {b['verify_ratio']:.2f}, alpha {b['alpha']:.3f}; decoder "
        f"speedup predicted {b['predicted_speedup']:.2f}, from counted blocks "
        f"{b['counted_speedup']:.2f}, measured {b['measured_speedup']:.2f}.{pays}"
    )
