"""A decoding run as the compilers of TPUs and GPUs see it: ``--dry_run`` with COMPILE_FOR."""

from __future__ import annotations

from pathlib import Path

from specdec.checkpoints.architectures import Config
from specdec.compile import chips
from specdec.compile.compiling import compile_report
from specdec.compile.programs import DoesNotFitError
from specdec.compile.report import CompileReport
from specdec.measure.floors import BlockPlan
from specdec.runs.decode_run import DecodeRun


def compiled(
    run: DecodeRun, target: Config, config_of, plan: BlockPlan, chip: str
) -> CompileReport:
    """The run's program, compiled.

    Args:
      target: its shape.
      config_of: the shape of a model that its draft names.
      plan: of its models, for what mesh they would fit on.
      chip: see :func:`specdec.compile.chips.find`.

    Raises:
      ValueError: gamma or the tree are to be chosen, or its draft has no shape without weights; see
        also :func:`specdec.compile.compiling.compile_report`.
    """
    how = run.decoding
    if how.to_choose:
        raise ValueError('COMPILE_FOR compiles one program: give a gamma or a tree, not "auto".')
    try:
        return compile_report(
            target, run.draft if how.guesses else None, how, chip=chip, mesh=run.mesh,
            dtype=run.dtype, int8=run.weights == "int8",
            names=(run.target, str(run.draft) if how.guesses else None), config_of=config_of,
        )  # fmt: skip
    except DoesNotFitError as error:
        raise DoesNotFitError(f"{error} {_advice(plan, chip)}") from None


def _advice(plan: BlockPlan, chip: str) -> str:
    """On what mesh the models would fit, as the plan has them."""
    hardware = chips.find(chip).chip.hardware
    mesh = plan.fitting_mesh(hardware)
    if mesh is None:
        return "It would on no mesh with this data axis: a smaller batch or draft, or more groups."
    if mesh == plan.mesh:
        return "Its models alone would: a smaller batch or shorter texts leave room for the rest."
    return (
        f"It would on {mesh.data * mesh.model} devices, a mesh of {mesh.data} x {mesh.model} "
        "(data x model), without activations."
    )


def written(report: CompileReport, folder: str | Path | None) -> list[str]:
    """What is printed of a report; with a folder it is written there too."""
    lines = [str(report)]
    if folder is not None:
        lines.append(f"Written to {report.write(folder)}")
    return lines
