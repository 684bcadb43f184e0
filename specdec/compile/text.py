"""A report as text, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.core.theory import alpha_of_blocks
from specdec.measure.tables import aligned

if TYPE_CHECKING:
    from specdec.compile.report import CompileReport, Part

_ESTIMATED = (
    "estimated by the TPU compiler, not measured. Prefetches, collectives and launches have no "
    "cycles in it, so ms is max(cycles / clock, bytes / bandwidth) of each part."
)
_COUNTED = (
    "counted in what the GPU compiler made, not measured: ms is bytes / bandwidth, a floor. "
    "Launches come on top."
)
_GB = 1e9
_FEW = 1e6  # Bytes that say nothing of how a part stands to its floor.


def lines(report: CompileReport) -> list[str]:
    """Lines that the command line prints."""
    chip, made = report.topology.chip, report.main.program
    needed, has = made.argument_bytes + made.temporary_bytes, chip.memory
    rows = [("start of plain decoding", report.plain.start), ("plain step", report.plain.block)]
    if report.speculative is not None:
        guessed = report.speculative
        rows.append(("start", guessed.start))
        if guessed.draft is not None and guessed.draft_step is not None:
            rows += [("drafting", guessed.draft), ("  of it a step", guessed.draft_step)]
        names = [name for name in guessed.phases if not name.startswith("draft")]
        rows += [(name, guessed.phases[name]) for name in names if guessed.phases[name].bytes]
        rows.append(("block", guessed.block))
    return [
        f"Compiled for {report.topology}: {_ESTIMATED if chip.clock else _COUNTED}",
        f"Fits: {made.argument_bytes / _GB:,.2f} GB of arguments and "
        f"{made.temporary_bytes / _GB:,.2f} GB of temporaries, {needed / has:.0%} of the "
        f"{has / _GB:,.2f} GB of each device. Compiled in {made.seconds:.0f} s.",
        *_table(rows, chip.bandwidth),
        *_ratios(report),
    ]


def _table(rows: list[tuple[str, Part]], bandwidth: float) -> list[str]:
    cells = [("", "M cycles", "kernels", "GB", "ms", "of floor", "mostly")]
    for name, part in rows:
        floor = 1e3 * part.bytes / bandwidth
        most = next(iter(part.largest), "")
        cells.append((
            name, "" if part.cycles is None else f"{part.cycles / 1e6:.3f}",
            "" if part.kernels is None else str(part.kernels), f"{part.bytes / _GB:.3f}",
            f"{part.ms:.3f}", f"{part.ms / floor:.2f}" if part.bytes > _FEW else "", most,
        ))  # fmt: skip
    kept = [at for at in range(len(cells[0])) if any(row[at] for row in cells[1:])]
    found = aligned([[row[at] for at in kept] for row in cells], left=(0, -1))
    for name, part in rows:
        if part.collectives:
            counts = ", ".join(f"{count} {kind}" for kind, count in part.collectives.items())
            found.append(f"  {name}: {counts}")
    return found


def _ratios(report: CompileReport) -> list[str]:
    guessed, c, v = report.speculative, report.cost_ratio, report.verify_ratio
    found = [f"a token of plain decoding: {report.plain.block.ms:.3f} ms"]
    if guessed is None or v is None or report.pays_from is None:
        return found
    drafts = "" if c is None else f"c = {c:.3f}, "
    found.append(f"a block: {guessed.block.ms:.3f} ms; {drafts}v = {v:.3f}")
    pays, most = report.pays_from, report.gamma + 1
    if not pays <= most:
        found.append("speculation pays at no alpha")
    elif report.speedup_at is None:
        found.append(f"speculation pays from {pays:.2f} tokens a block")
    else:
        alpha = alpha_of_blocks(max(pays, 1), report.gamma)
        found.append(f"speculation pays from alpha {alpha:.2f}, {pays:.2f} tokens a block")
        speeds = [f"{speed:.2f} at {alpha}" for alpha, speed in report.speedup_at.items()]
        found.append(
            f"whole decodes of {report.tokens} tokens, start included, by alpha: "
            + ", ".join(speeds[1::2])
        )
    return found
