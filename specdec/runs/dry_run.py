"""``--dry_run``: how much memory a decoding run needs, and how fast it is in theory.

Shapes only: no weights, data or vocabulary are read, and nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import gin

from specdec.checkpoints import CheckpointError, is_t5x, ngrams, read_config
from specdec.checkpoints.architectures import Config, count_parameters
from specdec.checkpoints.families import FAMILIES
from specdec.checkpoints.formats import options_of
from specdec.checkpoints.loading import BUNDLED, resolve
from specdec.checkpoints.share import FewBits
from specdec.core.roofline import Hardware
from specdec.core.theory import break_even_alpha, expected_tokens, speedup
from specdec.decoding.batches import bucket, input_bucket
from specdec.decoding.build import DRAFT_BEAMS
from specdec.decoding.options import Decoding
from specdec.drafters.hierarchical import Hierarchical
from specdec.drafters.merged import Merged
from specdec.drafters.ngram import Ngram
from specdec.drafters.quantized import Quantized
from specdec.drafters.shape import Tree
from specdec.measure.beam_floors import BeamFloors
from specdec.measure.floors import BlockPart, BlockPlan, floor
from specdec.measure.tables import aligned
from specdec.models.partitioning import DeviceMesh
from specdec.models.products.quantized import GROUP
from specdec.runs import compile_run, gin_files
from specdec.runs.decode_run import DecodeRun
from specdec.runs.published import TABLE_4, ReportedRun, Table4Row

SHAPES = "configs/shapes"
_BEAMS_ON_MESHES = "Collectives and times of beams are not planned for a mesh."
_TOGETHER = "together, without activations"
_PART_LABELS = ("", "times", "read", "operations", "sent", "ms", "bound by")


def find_config(source: str, root: Path) -> tuple[Config, str]:
    """A checkpoint's shape and where it is from: its own, or configs/shapes for public ones.

    Replaces gin's configuration. A path or hub id that is no directory ends in a public name.

    Raises:
      CheckpointError: it is neither, or it is damaged.
    """
    if is_t5x(source) or Path(source).is_dir():
        return read_config(source), "its shapes" if is_t5x(source) else "config.json"
    name = Path(source.partition("@")[0]).name  # Without a branch, tag or commit.
    for family in FAMILIES.values():
        if shape := family.public_shape(name):
            return _public_shape(source, *shape, family.config, root)
    known = (name for family in FAMILIES.values() for name in family.public)
    raise CheckpointError(
        f"{source} is neither a directory nor named as a public checkpoint whose shape is in "
        f"{SHAPES}: {', '.join(known)}."
    )


def _public_shape(
    source: str, name: str, kind: str, config: type, root: Path
) -> tuple[Config, str]:
    file = f"{SHAPES}/{name}.gin"
    if not (root / file).is_file():
        known = sorted(path.stem for path in (root / SHAPES).glob(f"{kind}.gin"))
        raise CheckpointError(f"{source}: {SHAPES} has no {name}, only {', '.join(known)}.")
    gin_files.parse([str(root / file)], [], root)
    with gin.config_scope(name):
        return gin.get_configurable(config)(), file


def _few_bits(draft: Any) -> FewBits | None:
    if not isinstance(draft, Quantized):
        return None
    what = "of target" if draft.of is None else "decoder"
    return FewBits(draft.bits, draft.group or GROUP, what)


def _find_row(task_and_draft: tuple[str, str], temperature: float) -> Table4Row | None:
    rows = {(row.task, row.draft, row.temperature): row for row in TABLE_4}
    known = sorted({row[:2] for row in rows})
    if task_and_draft not in known:
        raise ValueError(f"PAPER_ROW must be one of {known}, got {task_and_draft!r}.")
    return rows.get((*task_and_draft, temperature))


def report(
    run: DecodeRun, root: Path, paper_row: tuple[str, str] | None = None,
    hardware: Hardware | None = None, reported: ReportedRun | None = None,
    compile_for: str | None = None, folder: Path | None = None, *, distributed: bool = False,
) -> str:  # fmt: skip
    """What ``--dry_run`` prints.

    Args:
      paper_row: task and draft of the paper's Table 4 that the run repeats.
      hardware: what the devices of the run's mesh are, or the one device it has without.
      reported: a run of others, with which the plan is compared.
      compile_for: a chip or a slice of several (:func:`specdec.compile.chips.find`), for which
        the run is compiled.
      folder: where ``compile.json`` is written then; None for nowhere.
      distributed: whether several processes are to do the run.

    Raises:
      ValueError: a shape is not known or damaged (CheckpointError), there is no such row, the
        mesh does not divide a model or the batch, the draft merges several ones, or the
        hardware or the reported run is invalid.
    """
    if not isinstance(hardware, Hardware | None):
        example = "--gin_file=configs/hardware/tpu_v4.gin"
        raise ValueError(f"HARDWARE must be a device's figures, as in {example}, got {hardware!r}.")
    if not isinstance(reported, ReportedRun | None):
        raise ValueError(f"REPORTED must be @ReportedRun() or None, got {reported!r}.")
    how = run.decoding
    row = None if paper_row is None else _find_row(paper_row, how.sampling.temperature)
    if how.tree is not None:
        row = None  # The paper's alpha is that of one guess for a position.
    tree = how.tree if isinstance(how.tree, Tree) else None
    # Shapes are those of plain decoding then, and of beams, whose caches hold each of them.
    chosen = bool(how.to_choose) or how.searches
    beams = how.beam.num_beams if how.beam else 1
    model = tables = run.draft
    if isinstance(model, Merged):
        raise ValueError(f"--dry_run plans one draft, not {model}: give one of them alone.")
    if isinstance(model, Hierarchical):
        model, tables = model.draft, model.inner
    names, found = [run.target], [find_config(resolve(run.target, "target"), root)]
    if run.generation_config != "ignore":  # What it cannot do is told now.
        given = None if run.generation_config == "follow" else run.generation_config
        options_of(resolve(run.target, "target"), found[0][0], given)
    source = model.of if isinstance(model, Quantized) else model
    if isinstance(source, str):
        names.append(str(model))
        found.append(find_config(resolve(source, "draft"), root))
    elif isinstance(model, Quantized):
        names.append(str(model))
        found.append(found[0])
    counts = [count_parameters(config) for config, _ in found]
    target, *draft = (dataclasses.replace(config, dtype=run.dtype) for config, _ in found)
    plan = BlockPlan(
        target, draft[0] if draft else None, run.mesh or DeviceMesh(), how.batch_size,
        gamma=0 if chosen else how.depth, input_len=input_bucket(how.max_input_len),
        output_len=bucket(how.max_decode_len) * beams, tree=tree,
        target_bits=FewBits(8, GROUP, "model") if run.weights else None,
        draft_bits=_few_bits(model),
    )  # fmt: skip
    alone = dataclasses.replace(plan, mesh=DeviceMesh())
    whole = alone.memory()
    labels = ("", "shape from", "parameters", "of them read in a decode step", *whole[0], _TOGETHER)
    columns = [
        (name, where, *(f"{count / 1e6:,.1f} M" for count in both), *_memory(held))
        for name, (_, where), both, held in zip(names, found, counts, whole, strict=True)
    ]
    lines = [
        f"{run.target} drafted by {run.draft}: {how.method}, {_shape(how)}, temperature "
        f"{how.sampling.temperature:g}, batch size {how.batch_size}, {run.dtype}"
        + (f", {run.weights} weights" if run.weights else ""),
        "",
        *aligned(list(zip(labels, *columns, strict=True))),
        "",
    ]
    if isinstance(tables, Ngram):
        file = _tables_file(os.fspath(tables.path))
        lines.append(f"n-gram tables {_amount(file.stat().st_size)}")
    if draft:
        lines.append(f"target and draft together {_amount(alone.needed)}")
        if plan.gamma:
            lines += _speed_lines(alone.step_ratio, plan.gamma, row)
    lines += _window_lines(names, alone, beams)
    if reported is not None:
        lines += ["", *_reported_lines(reported, alone, hardware)]
    if run.mesh is not None:
        lines += ["", *_device_lines(plan)]
    if distributed:
        lines += ["", f"{what_processes_do(run.mesh)}."]
    if hardware is not None:
        lines += ["", *_fitting_lines(plan, hardware)]
    lines += _times(run, plan, hardware, row)
    if compile_for is not None:
        target, *_ = found[0]
        shape = compile_run.compiled(
            run, target, lambda source: find_config(resolve(source, "draft"), root)[0], plan,
            compile_for,
        )  # fmt: skip
        lines += ["", *compile_run.written(shape, folder)]
    return "\n".join(lines)


def _times(
    run: DecodeRun, plan: BlockPlan, hardware: Hardware | None, row: Table4Row | None
) -> list[str]:
    """Collectives on a mesh, and floors on known hardware."""
    if run.mesh is None and hardware is None:
        return []
    if run.decoding.searches:
        alike = hardware is not None and run.mesh is None
        times = (
            _beam_lines(run.decoding, plan, hardware) if alike and hardware else [_BEAMS_ON_MESHES]
        )
        return ["", *times]
    if plan.unplanned:
        cut = ", ".join(plan.unplanned)
        return ["", f"Collectives and times are not planned for such a cut of {cut}."]
    if isinstance(run.draft, Hierarchical):
        return ["", "How often a hierarchical draft calls its model depends on the texts."]
    lines = []
    if run.mesh is not None:
        lines += ["", *_collective_lines(plan, run.decoding.stop_below)]
    if hardware is not None:
        lines += ["", *_time_lines(plan, hardware, row)]
    return lines


def _shape(how: Decoding) -> str:
    shape = "gamma auto" if how.gamma == "auto" else "tree auto" if how.tree == "auto" else ""
    if not shape:
        shape = str(how.shape or "gamma 0")
    if how.beam is None:
        return shape
    beams = f"{how.beam.num_beams} beams"
    return f"{beams}, {shape}" if how.guesses else beams


def _window_lines(names: list[str], plan: BlockPlan, beams: int) -> list[str]:
    """What it costs that caches keep what is behind all windows."""
    models = (plan.target, plan.draft)
    return [
        f"the cache of {name} keeps all positions; {beyond.layers} of "
        f"{config.num_decoder_layers} layers need only {beyond.needed:,} of them: "
        f"{_amount(beyond.unneeded)} more than needed"
        for name, config, beyond in zip(names, models, plan.beyond_windows(beams), strict=False)
        if config is not None and beyond.unneeded
    ]


def _amount(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def _memory(held: dict[str, int]) -> list[str]:
    return [*map(_amount, held.values()), _amount(sum(held.values()))]


def _tables_file(path: str) -> Path:
    file = Path(resolve(path, "draft")).parent if path in BUNDLED else Path(path)
    file = file / ngrams.FILE_NAME if file.is_dir() else file
    if not file.is_file():
        raise CheckpointError(f"No n-gram tables at {file}.")
    return file


def _speed_lines(ratio: float, gamma: int, row: Table4Row | None) -> list[str]:
    """What theory and the paper say; ``ratio`` is c if a step takes the time to read weights."""
    if row is None:
        return [f"c is {ratio:.3f} or more: the ratio of what decode steps read"]
    cases = ((row.cost_ratio, "the paper's"), (ratio, "the ratio of what decode steps read"))
    return [
        f"speedup by Theorem 3.8 at the paper's alpha for {row.task}, T5-XXL and {row.draft}, "
        f"{row.alpha:.2f}:",
        *(f"  {speedup(row.alpha, gamma, c):.2f}  at c = {c:.3f}, {which}" for c, which in cases),
        f"in the paper, at gamma {row.gamma}: {row.expected} expected, {row.empirical} measured",
    ]


def _reported_lines(reported: ReportedRun, plan: BlockPlan, hardware: Hardware | None) -> list[str]:
    """A run of others, and how fast its blocks would be at the plan's own ratios."""
    ratios = {}
    if plan.draft is not None and plan.gamma:
        ratios["the ratio of what decode steps read"] = (plan.step_ratio, 1.0)
        if hardware is not None:
            where = f"at best on {hardware.name}"
            ratios[where] = plan.cost_ratio(hardware), plan.verify_ratio(hardware)
    return reported.lines(ratios)


def what_processes_do(mesh: DeviceMesh | None) -> str:
    """Of several processes that do one run."""
    if mesh is None:
        return "Each process holds a copy of the target and decodes its part of the batches"
    return (
        f"All processes hold one target together and decode every batch: the mesh of {mesh.data} x "
        f"{mesh.model} (data x model) is over all their devices"
    )


def _device_lines(plan: BlockPlan) -> list[str]:
    mesh, memory = plan.mesh, plan.memory()
    sides = zip(("target", "draft"), memory, strict=False)
    columns = [("", *memory[0], _TOGETHER), *((name, *_memory(held)) for name, held in sides)]
    return [
        f"On each of the {mesh.data * mesh.model} devices of a mesh of {mesh.data} x {mesh.model} "
        "(data x model):",
        *aligned(list(zip(*columns, strict=True))),
    ]


def _fitting_lines(plan: BlockPlan, hardware: Hardware) -> list[str]:
    has = f"{_amount(plan.needed)} of the {_amount(hardware.memory)} of a {hardware.name}"
    if plan.needed <= hardware.memory:
        return [f"Fits: {has} on each device, without activations."]
    mesh = plan.fitting_mesh(hardware)
    advice = "on no mesh with this data axis: a smaller batch or draft, or more groups"
    if mesh is not None:
        advice = f"on {mesh.data * mesh.model} devices, a mesh of {mesh.data} x {mesh.model}"
    return [f"Does NOT fit: {has} on each device, without activations. It would {advice}."]


def _collective_lines(plan: BlockPlan, stop_below: float) -> list[str]:
    lines = []
    for part in plan.block():
        times = f", {part.times} times" if part.times > 1 else ""
        for each in part.work.collectives:
            size = f"{each.size} B" if each.size < 1e3 else f"{each.size / 1e3:,.1f} kB"
            size = size if each.size < 1e6 else _amount(each.size)
            lines.append(
                f"  {part.name}{times}: {each.count} {each.kind} of {size} over {each.axis} "
                f"({each.devices} devices)"
            )
    remark = "  at most, and a byte after each guess: stop_below may end a draft earlier"
    return ["Collectives in a block:", *(lines or ["  none"]), *([remark] if stop_below else [])]


def _beam_lines(how: Decoding, plan: BlockPlan, hardware: Hardware) -> list[str]:
    """Floors of calls of plain beams and, with a draft and a gamma, of speculative ones."""
    assert how.beam is not None
    width, draft = how.beam.num_beams, plan.draft
    guessed = draft is not None and how.guesses and not how.to_choose
    beams = how.draft_beams or DRAFT_BEAMS * width
    floors = BeamFloors(
        plan.target, draft or plan.target, width, beams, how.depth if guessed else 1,
        plan.input_len, plan.output_len // width,
    )  # fmt: skip
    found = floors.computed(hardware, 1.0)
    lines = [f"At least, on {hardware.name}, a row alone:"]
    lines.append(f"  a call of plain beams: {found['plain_call'] * 1e3:.3f} ms")
    if guessed:
        c, v = found["cost_ratio"], found["verify_ratio"]
        lines += [
            f"  a call of speculative beams, {width + beams * floors.gamma} tokens: "
            f"{found['target_call'] * 1e3:.3f} ms, and its draft {found['drafting'] * 1e3:.3f} ms",
            f"  c = {c:.3f}, v = {v:.3f}: speculation pays from {v + floors.gamma * c:.2f} levels "
            "a call",
        ]
    return lines


def _time_lines(plan: BlockPlan, hardware: Hardware, row: Table4Row | None) -> list[str]:
    def ms(*parts: BlockPart) -> str:
        return f"{floor(parts, hardware) * 1e3:.3f}"

    plain, block = plan.plain(), plan.block()
    cells = [
        (part.name, str(part.times), _amount(part.work.read),
         f"{part.work.operations / 1e9:,.2f} G", _amount(part.work.sent), ms(part),
         part.work.bound(hardware))
        for part in [*plain, *(part for part in block if part not in plain)]
    ]  # fmt: skip
    lines = [
        f"At least, on {hardware.name} ({hardware.bandwidth / 1e9:,.0f} GB/s, "
        f"{hardware.peak / 1e12:,.1f} TFLOP/s, sends {hardware.interconnect / 1e9:,.0f} GB/s): "
        "max(read / bandwidth, operations / peak) + sent / interconnect",
        *aligned([_PART_LABELS, *cells]),
        f"a token of plain decoding: {ms(*plain)} ms",
    ]
    if not plan.gamma:
        return lines
    c, v = plan.cost_ratio(hardware), plan.verify_ratio(hardware)
    pays = break_even_alpha(plan.gamma, c, v)
    lines += [
        f"a block: {ms(*block)} ms; c = {c:.3f}, v = {v:.3f}",
        f"speculation pays {f'from alpha {pays:.2f}' if math.isfinite(pays) else 'at no alpha'}",
    ]
    waits = [sum(part.times * part.work.num_collectives for part in ps) for ps in (plain, block)]
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
