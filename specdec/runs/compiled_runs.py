"""Decodes compiled for chips that are not there, for the pages that compare them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.accelerators.programs import DoesNotFitError
from specdec.accelerators.report import CompileReport, ProgramReport
from specdec.checkpoints.architectures import Config
from specdec.compiling import compile_report
from specdec.core import tree_shapes
from specdec.core.theory import expected_tokens
from specdec.drafters.tree import Tree
from specdec.measure.tree_choice import Candidate, shortlist
from specdec.models.partitioning import DeviceMesh
from specdec.reproduction import paper
from specdec.runs.alpha_run import slug
from specdec.runs.kept import kept_of
from specdec.types import SamplingConfig

RESULT = "compiled.json"
_LONGEST = 16  # Guesses in a row that are considered.
_CALLS = (7, 15, 31)  # Guesses of the calls whose cost is compiled; between them, straight lines.


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
            mesh=DeviceMesh(1, self.model) if self.model > 1 else None,
            names=(self.target, self.draft), plain=_PLAIN.get(key),
        )  # fmt: skip
        _PLAIN[key] = report.plain
        return report

    @property
    def slug(self) -> str:
        """All that is not as it is by default, for a directory's name."""
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
      repaired: of the rejections that earlier ranks leave, the share that the second, third, ...
        likeliest guess repairs. The paper has no trees, so it is from elsewhere.
    """

    name: str
    shapes: Mapping[str, Config]
    decodes: Sequence[Mapping[str, Any]]
    paper_chip: str | None = None
    paper_inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    repaired: Sequence[float] = ()

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for fields in self.decodes:
            case = Compiled(**fields)
            yield (slug(self.name), "compiled", case.slug), functools.partial(self._case, case)
        for row in paper.TABLE_4 if self.paper_chip else ():
            place = (slug(row.task), slug(row.draft), f"t{row.temperature:g}")
            yield (slug(self.name), "table_2", *place), functools.partial(self._row, row)

    def _kept(self, directory: Path, case: Any, make: Callable[[], dict[str, Any]]) -> Any:
        settings = dataclasses.asdict(case)
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
        return kept_of(directory / RESULT, settings, make)

    def _case(self, case: Compiled, directory: Path) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            try:
                return case.report(self.shapes).json()
            except DoesNotFitError as error:
                return {"does_not_fit": str(error)}

        return self._kept(directory, case, make)

    def _row(self, row: paper.Table4Row, directory: Path) -> dict[str, Any]:
        """The paper's row; and the chain or tree that is best at its alpha, by these costs."""
        assert self.paper_chip is not None
        case = Compiled(
            self.paper_chip, "T5-XXL", row.draft, row.gamma, temperature=row.temperature,
            input_len=self.paper_inputs[row.task],
        )  # fmt: skip

        def make() -> dict[str, Any]:
            report = case.report(self.shapes)
            ranks = by_rank(row.alpha, self.repaired)
            best = self._best(case, report, ranks)
            chosen = dataclasses.replace(
                case, gamma=best.gamma or None, parents=best.tree and best.tree.parents
            )
            again = report if chosen == case else chosen.report(self.shapes)
            return {
                "alpha": row.alpha, "expected": row.expected, "empirical": row.empirical,
                "report": report.json(),
                "speedup": report.speedup(expected_tokens(row.alpha, row.gamma)),
                "best": {
                    "gamma": best.gamma, "parents": best.tree and best.tree.parents,
                    "nodes": best.tree.size if best.tree else best.gamma,
                    "depth": best.tree.levels if best.tree else best.gamma,
                    "tokens": best.tokens, "speedup": again.speedup(best.tokens or 1.0),
                    "report": again.json(),
                },
            }  # fmt: skip

        return self._kept(directory, case, make)

    def _best(self, case: Compiled, report: CompileReport, ranks: Sequence[float]) -> Candidate:
        assert report.cost_ratio is not None
        level = {1: report.cost_ratio, 8: report.cost_ratio}  # A level of a tree fills one tile.
        found = shortlist(ranks, self._calls(case), level, _LONGEST)
        return max(found, key=lambda each: each.predicted or 0.0)

    def _calls(self, case: Compiled) -> dict[int, float]:
        """v by guesses: what calls of more tiles cost, with the smallest draft."""
        wide = dataclasses.replace(case, draft="T5-small", gamma=None, temperature=0.0)
        found = _CALL_COSTS.setdefault(wide, {})
        for nodes in _CALLS:
            if nodes not in found:
                ratio = dataclasses.replace(wide, tree=(nodes,)).report(self.shapes).verify_ratio
                assert ratio is not None
                found[nodes] = ratio
        return found


# Of this process.
_PLAIN: dict[Compiled, ProgramReport] = {}
_CALL_COSTS: dict[Compiled, dict[int, float]] = {}


def by_rank(alpha: float, repaired: Sequence[float]) -> tuple[float, ...]:
    """p_k, the probability that a position's k-th likeliest guess is the accepted one."""
    found, left = [alpha], 1 - alpha
    for share in repaired:
        found.append(left * share)
        left -= found[-1]
    return tree_shapes.falling(found)
