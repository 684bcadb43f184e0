"""``--dry_run``: what a decoding run would keep in memory, and how fast theory says it is.

Shapes only: no weights, data or vocabulary are read, and nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import gin

from specdec.checkpoints import CheckpointError, is_t5x, ngrams, read_config
from specdec.checkpoints.architectures import FAMILIES, Config, count_parameters
from specdec.checkpoints.loading import BUNDLED, resolve
from specdec.core.roofline import Hardware
from specdec.core.theory import speedup
from specdec.decoding.batches import bucket
from specdec.decoding.hierarchical import Hierarchical
from specdec.drafters.ngram import Ngram
from specdec.measure.tables import aligned
from specdec.models.partitioning import DeviceMesh
from specdec.reproduction import paper
from specdec.reproduction.floors import BlockPlan
from specdec.reproduction.plan import MEMORY_LABELS, amount, device_report, memory_cells
from specdec.runs import gin_files
from specdec.runs.decode_run import DecodeRun

SHAPES = "configs/shapes"
HARDWARE = "configs/hardware"
LABELS = ("", "shape from", "parameters", "of them read in a decode step", *MEMORY_LABELS)
_PUBLIC = re.compile(rf"({'|'.join(FAMILIES)})-(\w+)")


def find_config(source: str, root: Path) -> tuple[Config, str]:
    """A checkpoint's shape and where it is from: its own, or configs/shapes for public ones.

    Replaces gin's configuration.

    Args:
      source: a directory, or a path or hub id that ends in a public checkpoint's name.
      root: where ``configs/`` is.

    Raises:
      CheckpointError: it is neither, or it is damaged.
    """
    if is_t5x(source):
        return read_config(source), "its shapes"
    if Path(source).is_dir():
        return read_config(source), "config.json"
    public = _PUBLIC.fullmatch(Path(source).name)
    if public is None:
        raise CheckpointError(
            f"{source} is neither a directory nor named as a public T5 of known shape, such as "
            "google/t5-v1_1-xxl, google-t5/t5-11b or google/flan-t5-xl."
        )
    name = f"{FAMILIES[public[1]]}_{public[2]}"
    file = f"{SHAPES}/{name}.gin"
    if not (root / file).is_file():
        known = sorted(path.stem for path in (root / SHAPES).glob(f"{FAMILIES[public[1]]}_*"))
        raise CheckpointError(f"{source}: {SHAPES} has no {name}, only {', '.join(known)}.")
    gin_files.parse([str(root / file)], [], root)
    with gin.config_scope(name):
        return gin.get_configurable(Config)(), file


def find_row(task_and_draft: tuple[str, str], temperature: float) -> paper.Table4Row | None:
    """The row of the paper's Table 4; None if it has none for the temperature.

    Raises:
      ValueError: it has no such task and draft.
    """
    rows = [row for row in paper.TABLE_4 if (row.task, row.draft) == task_and_draft]
    if not rows:
        known = sorted({(row.task, row.draft) for row in paper.TABLE_4})
        raise ValueError(f"PAPER_ROW must be one of {known}, got {task_and_draft!r}.")
    return next((row for row in rows if row.temperature == temperature), None)


def report(
    run: DecodeRun,
    root: Path,
    paper_row: tuple[str, str] | None = None,
    hardware: Hardware | None = None,
) -> str:
    """What ``--dry_run`` prints.

    Args:
      run: its task is not looked at.
      root: where ``configs/`` is.
      paper_row: task and draft of the paper's Table 4 that the run repeats.
      hardware: what the devices of the run's mesh are, or the one device it has without.

    Raises:
      ValueError: a shape is not known or damaged (CheckpointError), there is no such row, the
        mesh does not divide a model or the batch, or the hardware is none.
    """
    if not isinstance(hardware, Hardware | None):
        raise ValueError(
            "HARDWARE must be a device's figures, as in "
            f"--gin_file={HARDWARE}/tpu_v4.gin, got {hardware!r}."
        )
    row = None if paper_row is None else find_row(paper_row, run.sampling.temperature)
    config, found = find_config(resolve(run.target, "target"), root)
    configs, columns = [config], [(run.target, found)]
    model = run.draft.draft if isinstance(run.draft, Hierarchical) else run.draft
    if isinstance(model, str):
        config, found = find_config(resolve(model, "draft"), root)
        configs.append(config)
        columns.append((model, found))
    plan = _plan(run, configs)
    whole = dataclasses.replace(plan, mesh=DeviceMesh()).memory()
    counts = [count_parameters(config) for config in configs]
    lines = [
        f"{run.target} drafted by {run.draft}: {run.method}, gamma {run.gamma}, temperature "
        f"{run.sampling.temperature:g}, batch size {run.batch_size}, {run.dtype}",
        "",
        *aligned(list(zip(
            LABELS,
            *(
                (*column, *(f"{count / 1e6:,.1f} M" for count in both), *memory_cells(held))
                for column, both, held in zip(columns, counts, whole, strict=True)
            ),
            strict=True,
        ))),
        "",
    ]  # fmt: skip
    tables = run.draft.inner if isinstance(run.draft, Hierarchical) else run.draft
    if isinstance(tables, Ngram):
        lines.append(f"n-gram tables {amount(_tables_file(tables.path).stat().st_size)}")
    if len(configs) == 2:
        lines.append(f"target and draft together {amount(sum(held.total for held in whole))}")
        if plan.gamma:
            lines += _speed(counts[1][1] / counts[0][1], plan.gamma, row)
    return "\n".join([*lines, *device_report(run, plan, hardware, row)])


def _plan(run: DecodeRun, configs: Sequence[Config]) -> BlockPlan:
    target, *draft = (dataclasses.replace(config, dtype=run.dtype) for config in configs)
    return BlockPlan(
        target,
        draft[0] if draft else None,
        run.mesh or DeviceMesh(),
        run.batch_size,
        gamma=0 if run.gamma == "auto" else run.guesses,
        input_len=bucket(run.max_input_len),
        output_len=bucket(run.max_decode_len),
    )


def _tables_file(path: str) -> Path:
    file = Path(resolve(path, "draft")).parent if path in BUNDLED else Path(path)
    file = file / ngrams.FILE_NAME if file.is_dir() else file
    if not file.is_file():
        raise CheckpointError(f"No n-gram tables at {file}.")
    return file


def _speed(ratio: float, gamma: int, row: paper.Table4Row | None) -> list[str]:
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
