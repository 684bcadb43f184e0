"""Decodes compiled for chips that are not there: README's estimate, the paper's Table 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.checkpoints.architectures import Config
from specdec.compile.compiling import compile_report
from specdec.compile.programs import DoesNotFitError
from specdec.compile.report import ProgramReport
from specdec.core.theory import expected_tokens
from specdec.reproduce import paper
from specdec.reproduce.pieces import Done, Piece, kept, slug
from specdec.types import SamplingConfig

RESULT = "compiled.json"
_SETTINGS = (
    "chip", "target", "draft", "gamma", "temperature", "input_len", "output_len", "batch_size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CompiledDecode:
    """A decode to compile, as a piece; see :func:`specdec.compile_report`.

    Attributes:
      path: see :class:`specdec.reproduce.pieces.Piece`.
      shapes: models by the names that ``target`` and ``draft`` are of.
      row: of the paper's Table 2, whose alpha gives a speedup; None for no row.
    """

    path: tuple[str, ...]
    shapes: Mapping[str, Config]
    chip: str
    target: str
    draft: str
    gamma: int
    temperature: float = 0.0
    input_len: int = 64
    output_len: int = 128
    batch_size: int = 1
    row: paper.Table4Row | None = None

    def do(self, directory: Path) -> Done:
        """Compiles, unless the report is there; that it does not fit is a result, too."""
        settings = {key: getattr(self, key) for key in _SETTINGS}
        return kept(directory / RESULT, settings, self._made)

    def _made(self) -> dict[str, Any]:
        plain = tuple(getattr(self, key) for key in _SETTINGS if key not in ("draft", "gamma"))
        try:
            report = compile_report(
                self.shapes[self.target], self.shapes[self.draft], chip=self.chip,
                gamma=self.gamma, max_input_len=self.input_len, max_decode_len=self.output_len,
                batch_size=self.batch_size, sampling=SamplingConfig(self.temperature),
                dtype="bfloat16",
                names=(self.target, self.draft), plain=_PLAIN.get(plain),
            )  # fmt: skip
        except DoesNotFitError as error:
            return {"does_not_fit": str(error)}
        _PLAIN[plain] = report.plain
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
      decodes: each as the fields of :class:`CompiledDecode` that it does not have by default.
      paper_chip: of Table 2; None leaves it out.
      paper_inputs: tokens of its inputs, by task.
    """

    name: str
    shapes: Mapping[str, Config]
    decodes: Sequence[Mapping[str, Any]]
    paper_chip: str | None = None
    paper_inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """All decodes, one piece each."""
        name = slug(self.name)
        for fields in self.decodes:
            case = slug("-".join(f"{key}{value}" for key, value in fields.items()))
            yield CompiledDecode((name, "compiled", case), self.shapes, **fields)
        for row in paper.TABLE_4 if self.paper_chip else ():
            yield CompiledDecode(
                (name, "table_2", slug(row.task), slug(row.draft), f"t{row.temperature:g}"),
                self.shapes, self.paper_chip or "", "T5-XXL", row.draft, row.gamma,
                row.temperature, self.paper_inputs[row.task], row=row,
            )  # fmt: skip


_PLAIN: dict[tuple[Any, ...], ProgramReport] = {}  # Compiled once a process.
