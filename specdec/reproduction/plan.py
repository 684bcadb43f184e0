"""A plan in words: what each device holds, what devices exchange, how long a block takes."""

from __future__ import annotations

import math
from typing import Protocol

from specdec.core.roofline import Hardware, Load
from specdec.core.theory import break_even_alpha, expected_tokens, speedup
from specdec.decoding.hierarchical import Hierarchical
from specdec.drafters.base import DraftSpec
from specdec.measure.tables import aligned
from specdec.models.partitioning import DeviceMesh
from specdec.reproduction import paper
from specdec.reproduction.floors import BlockPlan, Memory, Part, floor

MEMORY_LABELS = (
    "all parameters", "self-attention cache", "cross-attention keys and values",
    "logits of one call", "together, without activations",
)  # fmt: skip
_PART_LABELS = ("", "times", "read", "operations", "sent", "ms", "bound by")


class PlannedRun(Protocol):
    """What a report asks of the run behind a plan.

    Attributes:
      mesh: None where the run has one device.
      draft: the name of a checkpoint, or a spec.
      stop_below: the draft stops where its own probability falls below; 0 is never.
    """

    @property
    def mesh(self) -> DeviceMesh | None: ...
    @property
    def draft(self) -> str | DraftSpec: ...
    @property
    def stop_below(self) -> float: ...


def amount(count: float) -> str:
    """Bytes, in MB below a GB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def memory_cells(memory: Memory) -> list[str]:
    """A column beside :data:`MEMORY_LABELS`."""
    held = (memory.weights, memory.cache, memory.cross, memory.logits, memory.total)
    return [amount(count) for count in held]


def device_report(
    run: PlannedRun, plan: BlockPlan, hardware: Hardware | None, row: paper.Table4Row | None
) -> list[str]:
    """What a run's mesh and hardware add to its ``--dry_run``; nothing if it has neither.

    Args:
      row: of the paper's Table 4 that the run repeats.
    """
    lines = []
    if run.mesh is not None:
        lines += ["", *_device_lines(plan)]
    if hardware is not None:
        lines += ["", *_fitting_lines(plan, hardware)]
    if lines and plan.unplanned:
        cut = ", ".join(plan.unplanned)
        return [*lines, "", f"Collectives and times are not planned for such a cut of {cut}."]
    if lines and isinstance(run.draft, Hierarchical):
        return [*lines, "", "How often a hierarchical draft calls its model depends on the texts."]
    if run.mesh is not None:
        lines += ["", *_collective_lines(plan)]
        if run.stop_below:
            lines.append(
                "  at most, and a byte after each guess: stop_below may end a draft earlier"
            )
    if hardware is not None:
        lines += ["", *_time_lines(plan, hardware, row)]
    return lines


def _device_lines(plan: BlockPlan) -> list[str]:
    """What each device of the mesh holds."""
    mesh, held = plan.mesh, plan.memory()
    columns = [("", *MEMORY_LABELS)]
    columns += [
        (name, *memory_cells(memory))
        for name, memory in zip(("target", "draft"), held, strict=False)
    ]
    return [
        f"On each of the {mesh.data * mesh.model} devices of a mesh of {mesh.data} x {mesh.model} "
        "(data x model):",
        *aligned(list(zip(*columns, strict=True))),
    ]


def _fitting_lines(plan: BlockPlan, hardware: Hardware) -> list[str]:
    """Whether it fits in memory, and if not, where it would."""
    has = f"{amount(plan.needed)} of the {amount(hardware.memory)} of a {hardware.name}"
    if plan.needed <= hardware.memory:
        return [f"Fits: {has} on each device, without activations."]
    mesh = plan.fitting_mesh(hardware)
    if mesh is None:
        advice = "on no mesh with this data axis: a smaller batch or draft, or more groups"
    else:
        devices = mesh.data * mesh.model
        advice = f"on {devices} devices, a mesh of {mesh.data} x {mesh.model}"
    return [f"Does NOT fit: {has} on each device, without activations. It would {advice}."]


def _collective_lines(plan: BlockPlan) -> list[str]:
    """What devices exchange in a block."""
    lines = [
        f"  {part.name}{_times(part)}: {each.count} {each.kind} of {_message(each.size)} over "
        f"{each.axis} ({each.devices} devices)"
        for part in plan.block()
        for each in part.work.collectives
    ]
    return ["Collectives in a block:", *(lines or ["  none"])]


def _times(part: Part) -> str:
    return f", {part.times} times" if part.times > 1 else ""


def _message(size: int) -> str:
    if size < 1e3:
        return f"{size} B"
    return f"{size / 1e3:,.1f} kB" if size < 1e6 else amount(size)


def _time_lines(plan: BlockPlan, hardware: Hardware, row: paper.Table4Row | None) -> list[str]:
    """The time that a block takes at least, and how fast that makes it."""
    plain, block = plan.plain(), plan.block()
    parts = [*plain, *(part for part in block if part not in plain)]
    cells = [_PART_LABELS, *(_part_cells(part, hardware) for part in parts)]
    lines = [
        f"At least, on {hardware.name} ({hardware.bandwidth / 1e9:,.0f} GB/s, "
        f"{hardware.peak / 1e12:,.1f} TFLOP/s, sends {hardware.interconnect / 1e9:,.0f} GB/s): "
        "max(read / bandwidth, operations / peak) + sent / interconnect",
        *aligned(cells),
        f"a token of plain decoding: {_ms(plain, hardware)}",
    ]
    if not plan.gamma:
        return lines
    c, v = plan.cost_ratio(hardware), plan.verify_ratio(hardware)
    pays = break_even_alpha(plan.gamma, c, v)
    lines += [
        f"a block: {_ms(block, hardware)}; c = {c:.3f}, v = {v:.3f}",
        f"speculation pays from alpha {pays:.2f}"
        if math.isfinite(pays)
        else "speculation pays at no alpha",
    ]
    waits = [
        sum(part.times * part.work.num_collectives for part in side) for side in (plain, block)
    ]
    if any(waits):
        lines.append(
            "latency comes on top: each microsecond that a collective waits adds "
            f"{waits[0] / 1e3:.3f} ms to a token, {waits[1] / 1e3:.3f} ms to a block"
        )
    if row is not None:
        lines.append(
            f"at the paper's alpha {row.alpha:.2f}: "
            f"{expected_tokens(row.alpha, plan.gamma):.2f} tokens a block (Equation 1), "
            f"{speedup(row.alpha, plan.gamma, c, v):.2f} times faster; by Theorem 3.8 (v = 1) "
            f"{speedup(row.alpha, plan.gamma, c):.2f} at this c, "
            f"{speedup(row.alpha, plan.gamma, row.cost_ratio):.2f} at the paper's c"
        )
    return lines


def _ms(parts: list[Part], hardware: Hardware) -> str:
    return f"{floor(parts, hardware) * 1e3:.3f} ms"


def _part_cells(part: Part, hardware: Hardware) -> tuple[str, ...]:
    work: Load = part.work
    return (
        part.name,
        str(part.times),
        amount(work.read),
        f"{work.operations / 1e9:,.2f} G",
        amount(work.sent),
        f"{part.floor(hardware) * 1e3:.3f}",
        work.bound(hardware),
    )
