"""Decodes compiled for chips that are not there: README's estimate, the paper's Table 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.accelerators.programs import DoesNotFitError
from specdec.accelerators.report import CompileReport, ProgramReport
from specdec.checkpoints.architectures import Config
from specdec.compiling import compile_report
from specdec.core.theory import expected_tokens
from specdec.reproduce import paper
from specdec.reproduce.pieces import Done, Piece, kept, slug
from specdec.types import SamplingConfig

RESULT = "compiled.json"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A decode and what it is compiled for; see :func:`specdec.compile_report`.

    ``target`` and ``draft`` are names of the study's shapes.
    """

    chip: str
    target: str
    draft: str
    gamma: int
    temperature: float = 0.0
    input_len: int = 64
    output_len: int = 128
    dtype: str = "bfloat16"

    def report(self, shapes: Mapping[str, Config]) -> CompileReport:
        """Raises as :func:`specdec.compile_report`; plain decoding is compiled once a process."""
        key = dataclasses.replace(self, draft="", gamma=0)
        report = compile_report(
            shapes[self.target], shapes[self.draft], chip=self.chip,
            gamma=self.gamma,
            max_input_len=self.input_len, max_decode_len=self.output_len,
            sampling=SamplingConfig(self.temperature), dtype=self.dtype,
            names=(self.target, self.draft), plain=_PLAIN.get(key),
        )  # fmt: skip
        _PLAIN[key] = report.plain
        return report

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
class CompiledPiece:
    """A decode to compile; of a row of the paper's Table 2 with its speedup at the row's alpha."""

    path: tuple[str, ...]
    case: Compiled
    shapes: Mapping[str, Config]
    row: paper.Table4Row | None = None

    def do(self, directory: Path) -> Done:
        """Compiles, unless the report is there; that it does not fit is a result, too."""
        return kept(directory / RESULT, dataclasses.asdict(self.case), self._made)

    def _made(self) -> dict[str, Any]:
        try:
            report = self.case.report(self.shapes)
        except DoesNotFitError as error:
            return {"does_not_fit": str(error)}
        if self.row is None:
            return report.json()
        return {
            "alpha": self.row.alpha, "expected": self.row.expected,
            "empirical": self.row.empirical, "report": report.json(),
            "speedup": report.speedup(expected_tokens(self.row.alpha, self.row.gamma)),
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CompiledDecodes:
    """Decodes, and the paper's Table 2 on its own chip.

    Attributes:
      name: short, for tables and directories.
      shapes: models by name; those of the paper's rows by the paper's names.
      decodes: each as the fields of :class:`Compiled`.
      paper_chip: of Table 2; None leaves it out.
      paper_inputs: tokens of its inputs, by task.
    """

    name: str
    shapes: Mapping[str, Config]
    decodes: Sequence[Mapping[str, Any]]
    paper_chip: str | None = None
    paper_inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """All decodes."""
        for fields in self.decodes:
            case = Compiled(**fields)
            yield CompiledPiece((slug(self.name), "compiled", case.slug), case, self.shapes)
        if self.paper_chip is None:
            return
        for row in paper.TABLE_4:
            index = (slug(row.task), slug(row.draft), f"t{row.temperature:g}")
            case = Compiled(
                self.paper_chip, "T5-XXL", row.draft, row.gamma, temperature=row.temperature,
                input_len=self.paper_inputs[row.task],
            )  # fmt: skip
            yield CompiledPiece((slug(self.name), "table_2", *index), case, self.shapes, row)


# Of this process.
_PLAIN: dict[Compiled, ProgramReport] = {}
