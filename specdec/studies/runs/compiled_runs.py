"""Decodes compiled for chips that are not there, for the pages that compare them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.checkpoints.architectures import Config
from specdec.compile import chips
from specdec.compile.compiling import compile_report
from specdec.compile.programs import DoesNotFitError
from specdec.compile.report import CompileReport, ProgramReport
from specdec.core import tree_shapes
from specdec.core.theory import expected_tokens
from specdec.decoding.batches import bucket, input_bucket
from specdec.drafters.shape import Tree
from specdec.measure.floors import BlockPlan, floor
from specdec.models.partitioning import DeviceMesh
from specdec.studies import paper
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept_of
from specdec.types import SamplingConfig

RESULT = "compiled.json"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A decode and what it is compiled for; see :func:`specdec.compile_report`.

    ``target`` and ``draft`` are names of the study's shapes; without a draft it is plain decoding.
    """

    chip: str
    target: str
    draft: str | None = None
    gamma: int | None = None
    tree: tuple[int, ...] | None = None
    temperature: float = 0.0
    batch_size: int = 1
    input_len: int = 64
    output_len: int = 128
    dtype: str = "bfloat16"
    data: int = 1  # Groups of chips, each with a target and its part of the rows.
    model: int = 1  # Chips that hold one target together.
    parents: tuple[int, ...] | None = None  # Instead of ``tree``: any tree.

    def report(self, shapes: Mapping[str, Config]) -> CompileReport:
        """Raises as :func:`specdec.compile_report`; plain decoding is compiled once a process."""
        key = dataclasses.replace(self, draft=None, gamma=None, tree=None, parents=None)
        tree = self.tree if self.parents is None else Tree(parents=self.parents)
        report = compile_report(
            shapes[self.target], self.draft and shapes[self.draft], chip=self.chip,
            gamma=self.gamma, tree=tree, batch_size=self.batch_size,
            max_input_len=self.input_len, max_decode_len=self.output_len,
            sampling=SamplingConfig(self.temperature), dtype=self.dtype,
            mesh=self.mesh, names=(self.target, self.draft), plain=_PLAIN.get(key),
        )  # fmt: skip
        _PLAIN[key] = report.plain
        return report

    @property
    def mesh(self) -> DeviceMesh | None:
        """None for one chip."""
        several = self.data * self.model > 1
        return DeviceMesh(self.data, self.model) if several else None

    def floors(self, shapes: Mapping[str, Config]) -> dict[str, Any]:
        """What a chain takes at least on its mesh, by shapes and public figures (``floors.py``).

        Bytes that a chip holds, ms of a plain step and of a block, collectives of a plain step.
        """
        assert self.mesh is not None

        def shape(name: str) -> Config:
            return dataclasses.replace(shapes[name], dtype=self.dtype)

        plan = BlockPlan(
            shape(self.target), shape(self.draft) if self.draft else None, self.mesh,
            self.batch_size, self.gamma or 0, input_bucket(self.input_len),
            bucket(self.output_len),
        )  # fmt: skip
        hardware = chips.find(self.chip).chip.hardware
        return {
            "bytes": plan.needed, "step_ms": 1e3 * floor(plan.plain(), hardware),
            "block_ms": 1e3 * floor(plan.block(), hardware),
            "collectives": sum(part.times * part.work.num_collectives for part in plan.plain()),
        }  # fmt: skip

    @property
    def slug(self) -> str:
        """All settings that differ from the defaults, for a directory's name."""
        changed = (
            f"{field.name}{getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name not in ("chip", "target") and getattr(self, field.name) != field.default
        )
        return slug("-".join([self.chip, self.target, *changed]))


@dataclasses.dataclass(frozen=True)
class CompiledDecodes:
    """Decodes, and the paper's Table 2 on its own chip.

    Attributes:
      name: short, for tables and directories.
      shapes: models by name; those of the paper's rows by the paper's names.
      decodes: each as the fields of :class:`Compiled`.
      paper_chip: of Table 2; None leaves it out.
      paper_inputs: tokens of its inputs, by task.
      ranks: how likely a position's first, second, ... guess is accepted; trees are shaped for it.
      tree_nodes, tree_depth: of trees whose cost is compiled beside Table 2.
    """

    name: str
    shapes: Mapping[str, Config]
    decodes: Sequence[Mapping[str, Any]]
    paper_chip: str | None = None
    paper_inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ranks: Sequence[float] = ()
    tree_nodes: Sequence[int] = ()
    tree_depth: int = 1

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for fields in self.decodes:
            case = Compiled(**fields)
            yield (slug(self.name), "compiled", case.slug), functools.partial(self._case, case)
        for task, nodes, case in self._trees():
            index = (slug(self.name), "trees", slug(task), str(nodes))
            yield index, functools.partial(self._case, case)
        for row in paper.TABLE_4 if self.paper_chip else ():
            index = (slug(row.task), slug(row.draft), f"t{row.temperature:g}")
            yield (slug(self.name), "table_2", *index), functools.partial(self._row, row)

    def _kept(self, directory: Path, case: Any, make: Callable[[], dict[str, Any]]) -> Any:
        settings = dataclasses.asdict(case)
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return kept_of(directory / RESULT, settings, make)

    def _case(self, case: Compiled, directory: Path) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            floors = {"floors": case.floors(self.shapes)} if case.mesh else {}
            try:
                return case.report(self.shapes).json() | floors
            except DoesNotFitError as error:
                return {"does_not_fit": str(error)} | floors

        return self._kept(directory, case, make)

    def _row(self, row: paper.Table4Row, directory: Path) -> dict[str, Any]:
        """The paper's row."""
        case = dataclasses.replace(
            self._paper_case(row.task), draft=row.draft, gamma=row.gamma,
            temperature=row.temperature,
        )  # fmt: skip

        def make() -> dict[str, Any]:
            report = case.report(self.shapes)
            return {
                "alpha": row.alpha, "expected": row.expected, "empirical": row.empirical,
                "report": report.json(),
                "speedup": report.speedup(expected_tokens(row.alpha, row.gamma)),
            }  # fmt: skip

        return self._kept(directory, case, make)

    def _paper_case(self, task: str) -> Compiled:
        assert self.paper_chip is not None
        return Compiled(self.paper_chip, "T5-XXL", input_len=self.paper_inputs[task])

    def _trees(self) -> Iterator[tuple[str, int, Compiled]]:
        """What blocks of more guesses cost, by task and guesses: trees, with the smallest draft."""
        for task in self.paper_inputs:
            for nodes in self.tree_nodes:
                parents = tree_shapes.best_parents(self.ranks, nodes, self.tree_depth)
                case = dataclasses.replace(
                    self._paper_case(task), draft="T5-small", parents=parents
                )
                yield task, nodes, case


# Of this process.
_PLAIN: dict[Compiled, ProgramReport] = {}
