"""Report of the compilers on a decode beside plain decoding: parts, speedup and findings."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec.compile import findings, hlo, text
from specdec.compile.chips import Chip, Slice
from specdec.compile.costs import Cost
from specdec.compile.findings import Findings
from specdec.compile.phases import STEPS, Branch, Phases, Reader
from specdec.compile.programs import Program
from specdec.core.theory import expected_tokens

FILE = "compile.json"
ALPHAS = tuple(round(0.05 * i, 2) for i in range(10, 20))  # 0.5 to 0.95.


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a decode.

    Attributes:
      cycles: estimated by the TPU compiler; None of a GPU.
      bytes: of main memory, read and written by one chip.
      ms: the larger of cycles at the chip's clock and bytes over its bandwidth; of a GPU the
        latter, which is a floor.
      kernels: launches of a GPU; None for a TPU.
      collectives: how many of each kind, with others of the mesh.
      largest: where the most cycles (of a GPU: bytes) are from.
    """

    cycles: int | None
    bytes: int
    ms: float
    kernels: int | None
    collectives: dict[str, int]
    largest: dict[str, int]

    @classmethod
    def of(cls, costs: Sequence[Cost], chip: Chip) -> Part:
        """Parts that follow each other."""
        total = Cost.total(costs)
        tpu = chip.clock is not None
        return cls(
            total.cycles if tpu else None, total.bytes,
            1e3 * sum(_seconds(cost, chip) for cost in costs), None if tpu else total.kernels,
            dict(total.collectives), dict(total.largest.most_common(6)),
        )  # fmt: skip


def _seconds(cost: Cost, chip: Chip) -> float:
    computing = cost.cycles / chip.clock if chip.clock else 0.0
    return max(computing, cost.bytes / chip.bandwidth)


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """One compiled decode on one chip; see :class:`Part`.

    Attributes:
      start: encoder, prefill and all else before the loop.
      phases: of one block.
      block: one pass of the loop; of plain decoding one step.
      draft, draft_step: all guesses of a block, and one; None without a draft.
    """

    start: Part
    phases: dict[str, Part]
    draft: Part | None
    draft_step: Part | None
    block: Part
    findings: Findings
    program: Program

    @classmethod
    def of(
        cls, program: Program, chip: Chip, depth: int = 0, branch: Branch = "cheapest"
    ) -> ProgramReport:
        """Args:
        depth: guesses in a row of a block.
        branch: which branch of conditionals counts.

        Raises:
          ValueError: the program has no loop.
        """
        module = hlo.parse(program.text)
        kernels = program.thunks.kernels if program.thunks else {}
        found: Phases = Reader(module, kernels, max(depth - 1, 0) or None, branch).phases()
        drafts = {name: cost for name, cost in found.block.items() if name.startswith("draft")}
        draft = step = None
        if depth and drafts:
            draft = Part.of(list(drafts.values()), chip)
            one = Cost.total(drafts.values()).scaled(1 / depth)
            if depth > 1 and STEPS in drafts:
                one = drafts[STEPS].scaled(1 / (depth - 1))
            step = Part.of([one], chip)
        phases = {name: Part.of([cost], chip) for name, cost in found.block.items()}
        return cls(
            Part.of([found.start], chip), phases, draft, step,
            Part.of(list(found.block.values()), chip), findings.find(module), program,
        )  # fmt: skip

    def flaws(self) -> dict[str, int | None]:
        """The findings, and the graphs of a GPU."""
        thunks = self.program.thunks
        return dataclasses.asdict(self.findings) | {"graphs": thunks.graphs if thunks else None}


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """A decode and plain decoding of the same target, both compiled for the same chips.

    Attributes:
      topology: the chips that they were compiled for.
      target, draft: their names.
      gamma: guesses in a row: a chain's, or the levels of a tree.
      tree: None for chains.
      tokens: that a row emits in what ``speedup_at`` is of.
      plain: plain decoding.
      speculative: None where nothing but plain decoding was asked for.
    """

    topology: Slice
    target: str
    draft: str | None
    gamma: int
    tree: str | None
    tokens: int
    plain: ProgramReport
    speculative: ProgramReport | None = None

    @property
    def main(self) -> ProgramReport:
        """The decode that was asked for."""
        return self.speculative or self.plain

    @property
    def cost_ratio(self) -> float | None:
        """c: a guess over a plain step; None without a draft."""
        draft = self.main.draft
        return draft.ms / self.gamma / self.plain.block.ms if draft and self.gamma else None

    @property
    def verify_ratio(self) -> float | None:
        """v: a block without its draft over a plain step."""
        if self.speculative is None:
            return None
        draft = self.speculative.draft
        return (self.speculative.block.ms - (draft.ms if draft else 0)) / self.plain.block.ms

    def speedup(self, tokens_per_block: float) -> float:
        """Speedup of whole decodes, start included, whose blocks emit so many tokens on average.

        Raises ValueError where there are no blocks but plain steps.
        """
        if self.speculative is None:
            raise ValueError("Only plain decoding was compiled.")
        plain = self.plain.start.ms + self.tokens * self.plain.block.ms
        blocks = self.tokens / tokens_per_block
        return plain / (self.speculative.start.ms + blocks * self.speculative.block.ms)

    @property
    def speedup_at(self) -> dict[str, float] | None:
        """:meth:`speedup` by alpha, with the tokens of Equation 1; None but for chains."""
        if self.speculative is None or self.tree is not None or not self.gamma:
            return None
        return {f"{a:.2f}": self.speedup(expected_tokens(a, self.gamma)) for a in ALPHAS}

    @property
    def pays_from(self) -> float | None:
        """Tokens a block emits at least, on average, where whole decodes are faster than plain."""
        if self.speculative is None:
            return None
        saved = self.plain.start.ms - self.speculative.start.ms
        time = self.tokens * self.plain.block.ms + saved
        return self.tokens * self.speculative.block.ms / time if time > 0 else math.inf

    def __str__(self) -> str:
        return "\n".join(text.lines(self))

    def json(self) -> dict[str, Any]:
        """Contents of ``compile.json``: parts have cycles, bytes, ms and kernels."""
        main, plain, guessed = self.main, self.plain, self.speculative
        chip = self.topology.chip
        parts = {
            "start": main.start, "plain_start": plain.start, "plain_step": plain.block,
            "draft_step": main.draft_step, "drafting": main.draft,
            "target_call": guessed.phases.get("target") if guessed else None,
            "block": guessed.block if guessed else None,
        }  # fmt: skip
        return {
            "topology": self.topology.name,
            "hosts": self.topology.hosts,
            "target": self.target,
            "draft": self.draft,
            "gamma": self.gamma,
            "tree": self.tree,
            "tokens": self.tokens,
            "argument_bytes": main.program.argument_bytes,
            "temporary_bytes": main.program.temporary_bytes,
            "device_bytes": int(chip.memory),
            "compile_seconds": main.program.seconds,
            "plain_compile_seconds": plain.program.seconds,
            **{name: part and dataclasses.asdict(part) for name, part in parts.items()},
            "cost_ratio": self.cost_ratio,
            "verify_ratio": self.verify_ratio,
            "pays_from_tokens": self.pays_from,
            "speedup_at": self.speedup_at,
            "findings": main.flaws(),
            "plain_findings": plain.flaws(),
            "estimated_by": "the TPU compiler" if chip.clock else "bytes over bandwidth",
        }

    def write(self, folder: str | Path) -> Path:
        """Writes ``compile.json``."""
        file = Path(folder) / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.json(), indent=2) + "\n")
        return file
