"""``--dry_run``: whether a run fits, what it will read, and what it would write.

Shapes only: no weights, data or vocabulary are read, and nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin

from specdec.checkpoints import CheckpointError, is_t5x, ngrams, read_config
from specdec.checkpoints.architectures import Config, count_parameters
from specdec.checkpoints.families import FAMILIES
from specdec.checkpoints.formats import options_of
from specdec.checkpoints.loading import BUNDLED, resolve
from specdec.compile import chips
from specdec.compile.compiling import compile_report
from specdec.core.arguments import positive
from specdec.decoding.batches import bucket, input_bucket
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.hierarchical import Hierarchical
from specdec.drafters.merged import Merged
from specdec.drafters.ngram import Ngram
from specdec.drafters.quantized import Quantized
from specdec.drafters.shape import Tree
from specdec.measure.memory import MemoryPlan, Quantization
from specdec.measure.tables import aligned
from specdec.models.partitioning import DeviceMesh
from specdec.models.products.quantized import GROUP
from specdec.runs import gin_files
from specdec.runs.decode_run import DecodeRun
from specdec.runs.transcribe_run import TranscribeRun

SHAPES = "configs/shapes"


class _Model(NamedTuple):
    """A model that a run would open."""

    name: str
    shape: Config
    where: str  # The shape is from.


def report(
    run: DecodeRun | TranscribeRun, root: Path, hardware: str | float | None = None,
    compile_for: str | None = None, folder: Path | None = None, *, reads: str = "",
    writes: Sequence[str] = (), distributed: bool = False,
) -> str:  # fmt: skip
    """Text that ``--dry_run`` prints.

    Args:
      hardware: the devices of the run's mesh, or the one it has without: a chip's name
        (:func:`specdec.compile.chips.find`), or the bytes of a device's memory.
      compile_for: a chip or a slice of several, for which the run is compiled.
      folder: where the run would write; ``compile.json`` is written there. None for its default.
      reads: beside models, in words.
      writes: names of files.
      distributed: whether several processes are to do the run.

    Raises:
      ValueError: a shape is not known or damaged (CheckpointError), the mesh does not divide a
        model or the batch, the draft merges several ones, the hardware is none, or as
        :func:`specdec.compile_report`.
      DoesNotFitError: the compiled program needs more memory than the chip has.
    """
    memory = None if hardware is None else _memory_of(hardware)
    draft, tables = run.draft, run.draft
    if isinstance(run.draft, Merged):
        raise ValueError(f"--dry_run plans one draft, not {draft}: give one of them alone.")
    if isinstance(run.draft, Hierarchical):
        draft, tables = run.draft.draft, run.draft.inner
    models, how = _models(run, draft, root), run.decoding
    # Shapes are those of plain decoding while they are to be chosen, and of beams, whose caches
    # hold each of them.
    chosen, beams = bool(how.to_choose) or how.searches, how.beam.num_beams if how.beam else 1
    shapes = [dataclasses.replace(model.shape, dtype=run.dtype) for model in models]
    bits = None
    if isinstance(draft, Quantized):
        what = "of target" if draft.of is None else "decoder"
        bits = Quantization(draft.bits, draft.group or GROUP, what)
    plan = MemoryPlan(
        shapes[0], shapes[1] if len(shapes) > 1 else None, run.mesh or DeviceMesh(),
        how.batch_size, gamma=0 if chosen else how.depth,
        input_len=_input_len(shapes[0], how), output_len=bucket(how.max_decode_len) * beams,
        tree=how.tree if isinstance(how.tree, Tree) else None,
        target_bits=Quantization(8, GROUP, "model") if run.weights else None, draft_bits=bits,
    )  # fmt: skip
    lines = [
        f"{run.target} drafted by {run.draft}: {how.method}, {_shape(how)}, temperature "
        f"{how.sampling.temperature:g}, batch size {how.batch_size}, {run.dtype}"
        + (f", {run.weights} weights" if run.weights else ""),
        "",
    ]
    for name, shape, where in models:
        count = count_parameters(shape)[0] / 1e6
        lines.append(f"Reads {name}: {count:,.1f} M parameters (by {where})")
    if isinstance(tables, Ngram):
        size = _tables_file(os.fspath(tables.path)).stat().st_size
        lines.append(f"Reads n-gram tables: {_amount(size)}")
    if reads:
        lines.append(f"Reads {reads}")
    lines += [
        "", *_holding(models, plan), *_fitting(plan, memory), "",
        f"Writes to {folder or 'out/<experiment>-<time>'}: {', '.join(writes)}.",
    ]  # fmt: skip
    if distributed:
        lines += ["", f"{what_processes_do(run.mesh)}."]
    if compile_for is not None:
        lines += ["", *_compiled(run, root, models[0].shape, compile_for, folder)]
    return "\n".join(lines)


def _input_len(target: Config, how: Decoding) -> int:
    """Positions of an encoded input."""
    if target.input_shape is None:
        return input_bucket(how.max_input_len)
    return target.input_shape[0] // 2


def _models(
    run: DecodeRun | TranscribeRun, draft: str | os.PathLike | DraftSpec, root: Path
) -> list[_Model]:
    """The target, and the draft if it is a model."""
    source = resolve(run.target, "target")
    target = _Model(run.target, *find_config(source, root))
    if run.generation_config != "ignore":  # Options that cannot be followed are an error now.
        given = None if run.generation_config == "follow" else run.generation_config
        options_of(source, target.shape, given)
    of = draft.of if isinstance(draft, Quantized) else draft
    if isinstance(of, str | os.PathLike):
        return [target, _Model(str(draft), *find_config(resolve(of, "draft"), root))]
    return [target, target._replace(name=str(draft))] if isinstance(draft, Quantized) else [target]


def find_config(source: str, root: Path) -> tuple[Config, str]:
    """A checkpoint's shape and where it is from: its own, or configs/shapes for public ones.

    Replaces gin's configuration. A path or hub id that is no directory ends in a public name.

    Raises:
      CheckpointError: it is neither, or it is damaged.
    """
    if is_t5x(source) or Path(source).is_dir():
        return read_config(source), "its shapes" if is_t5x(source) else "config.json"
    public = Path(source.partition("@")[0]).name  # Without a branch, tag or commit.
    for family in FAMILIES:
        if not (shape := family.public_shape(public)):
            continue
        name, kind = shape
        file = f"{SHAPES}/{name}.gin"
        if not (root / file).is_file():
            known = sorted(path.stem for path in (root / SHAPES).glob(f"{kind}.gin"))
            raise CheckpointError(f"{source}: {SHAPES} has no {name}, only {', '.join(known)}.")
        gin_files.parse([str(root / file)], [], root)
        with gin.config_scope(name):
            return gin.get_configurable(family.shape)(), file
    known = (name for family in FAMILIES for name in family.public)
    raise CheckpointError(
        f"{source} is neither a directory nor named as a public checkpoint whose shape is in "
        f"{SHAPES}: {', '.join(known)}."
    )


def _tables_file(path: str) -> Path:
    file = Path(resolve(path, "draft")).parent if path in BUNDLED else Path(path)
    file = file / ngrams.FILE_NAME if file.is_dir() else file
    if not file.is_file():
        raise CheckpointError(f"No n-gram tables at {file}.")
    return file


def _memory_of(hardware: Any) -> tuple[str, float]:
    """A device's name and the bytes of its memory."""
    if isinstance(hardware, str):
        chip = chips.find(hardware).chip
        return chip.label, chip.memory
    meaning = "a chip's name, such as 'v4' or 'h200', or bytes of a device's memory"
    return "device", positive("HARDWARE", hardware, meaning)


def _holding(models: list[_Model], plan: MemoryPlan) -> list[str]:
    """Bytes of target and draft on each device."""
    held, mesh = plan.held(), plan.mesh
    where = "" if mesh.data * mesh.model == 1 else (
        f"On each of the {mesh.data * mesh.model} devices of a mesh of {mesh.data} x {mesh.model} "
        "(data x model):"
    )  # fmt: skip
    labels = ("", *held[0], "together, without activations", "weights that a decode step reads")
    columns = [
        (model.name, *map(_amount, (*each.values(), sum(each.values()), read)))
        for model, each, read in zip(models, held, plan.read(), strict=True)
    ]
    lines = [where] * bool(where) + aligned(list(zip(labels, *columns, strict=True)))
    if len(held) > 1:
        lines.append(f"target and draft together {_amount(plan.needed)}")
    return lines


def _fitting(plan: MemoryPlan, device: tuple[str, float] | None) -> list[str]:
    if device is None:
        return []
    name, memory = device
    has = f"{_amount(plan.needed)} of the {_amount(memory)} of each {name}"
    if plan.needed <= memory:
        return [f"Fits: {has}, without activations."]
    mesh = plan.fitting_mesh(memory)
    advice = "It would on no mesh with this data axis: a smaller batch or draft, or more groups."
    if mesh is not None:
        devices = mesh.data * mesh.model
        advice = f"It would on {devices} devices, a mesh of {mesh.data} x {mesh.model}."
    return [f"Does NOT fit: {has}, without activations. {advice}"]


def _compiled(
    run: DecodeRun | TranscribeRun, root: Path, target: Config, chip: str, folder: Path | None
) -> list[str]:
    """The run's program as the compiler of a chip sees it."""
    how = run.decoding
    if how.to_choose:
        raise ValueError('COMPILE_FOR compiles one program: give a gamma or a tree, not "auto".')
    draft = run.draft if how.guesses else None
    found = compile_report(
        target, draft, how, chip=chip, mesh=run.mesh, dtype=run.dtype,
        int8=run.weights == "int8", names=(run.target, None if draft is None else str(draft)),
        config_of=lambda source: find_config(resolve(source, "draft"), root)[0],
    )  # fmt: skip
    return [str(found), *([] if folder is None else [f"Written to {found.write(folder)}"])]


def _shape(how: Decoding) -> str:
    shape = "gamma auto" if how.gamma == "auto" else "tree auto" if how.tree == "auto" else ""
    if not shape:
        shape = str(how.shape or "gamma 0")
    if how.beam is None:
        return shape
    beams = f"{how.beam.num_beams} beams"
    return f"{beams}, {shape}" if how.guesses else beams


def _amount(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"


def what_processes_do(mesh: DeviceMesh | None) -> str:
    """Sentence on several processes that do one run."""
    if mesh is None:
        return "Each process holds a copy of the target and decodes its part of the batches"
    return (
        f"All processes hold one target together and decode every batch: the mesh of {mesh.data} x "
        f"{mesh.model} (data x model) is over all their devices"
    )
