"""A study of distillation: one draft, several losses and data, equal steps, and alpha of each."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec.checkpoints import save_huggingface
from specdec.checkpoints.architectures import Config
from specdec.checkpoints.formats import find_vocabulary
from specdec.checkpoints.loading import resolve
from specdec.data.batching import BatchingOptions
from specdec.data.tasks import Task
from specdec.studies.runs.alpha_run import AlphaRun, slug
from specdec.studies.runs.kept import kept_of
from specdec.training import generate
from specdec.training.distill import DistillationOptions, distill
from specdec.training.loop import LoopOptions
from specdec.training.on_policy import OnPolicy
from specdec.training.optimizer import OptimizerOptions
from specdec.training.train import TextFiles
from specdec.types import SamplingConfig

TRAINED, RUN, DRAFT, START = "trained.json", "run", "draft", "before"
# Whether the target's outputs stand in for the references, and the share of batches whose outputs
# the draft generates while it trains.
DATA: dict[str, tuple[bool, float]] = {
    "references": (False, 0.0),
    "target": (True, 0.0),
    "draft": (False, 1.0),
    "mixture": (True, 0.5),
}


@dataclasses.dataclass(frozen=True)
class DistillationRuns:
    """Drafts that begin as one and are distilled for as many steps, each with a loss and data.

    Attributes:
      name: short, for tables and directories.
      task: opens the inputs along whose texts alpha is measured, once.
      target: a checkpoint, whose own outputs the drafts learn from where their data is "target" or
        "mixture".
      model, initial: the draft's network, and the checkpoint that it begins as; None for random
        parameters.
      cells: (loss, data) of each draft: a name in :data:`specdec.training.losses.LOSSES`, and one
        in ``DATA``.
      generated: training inputs, spread evenly, whose outputs the target generates.
      refresh_every: see :class:`specdec.training.on_policy.OnPolicy`.
      alpha_examples: of ``task``; the paper has 10,000 tokens.
    """

    name: str
    task: Callable[[], Task]
    target: str
    model: Config
    initial: str | None
    files: TextFiles
    batching: BatchingOptions
    optimizer: OptimizerOptions
    loop: LoopOptions
    cells: Sequence[tuple[str, str]]
    generated: int
    refresh_every: int
    alpha_examples: int
    max_input_len: int
    max_decode_len: int

    def __post_init__(self):
        for cell in self.cells:
            if len(cell) != 2 or cell[1] not in DATA:
                raise ValueError(
                    f"cells must be pairs of a loss and one of {', '.join(DATA)}, got {cell!r}."
                )
            self._options(*cell)

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        index = slug(self.name), "distillation"
        if any(DATA[data][0] for _, data in self.cells):
            yield (*index, "generated"), self._generate
        for loss, data in self.cells:

            def train(directory: Path, loss: str = loss, data: str = data) -> dict[str, Any]:
                return self._train(directory, loss, data)

            yield (*index, f"{loss}_{data}"), train
        for temperature in (0.0, 1.0):

            def measure(directory: Path, temperature: float = temperature) -> dict[str, Any]:
                return self._measure(directory, temperature)

            yield (*index, f"alpha_t{temperature:g}"), measure

    def _options(self, loss: str, data: str) -> DistillationOptions:
        share = DATA[data][1]
        own = OnPolicy(share, self.refresh_every) if share else None
        return DistillationOptions(self.target, loss, on_policy=own)

    def _generate(self, directory: Path) -> dict[str, Any]:
        settings = {"target": self.target, "files": vars(self.files), "count": self.generated}

        def make() -> dict[str, Any]:
            generate.generate(directory, files=self.files, target=self.target, count=self.generated)
            return {}

        return kept_of(directory / "generated.json", settings, make)

    def _train(self, directory: Path, loss: str, data: str) -> dict[str, Any]:
        options, files = self._options(loss, data), self.files
        if DATA[data][0]:
            outputs = directory.parent / "generated" / generate.FILE_NAME
            files = dataclasses.replace(files, train=str(outputs.resolve()))
        settings = {
            "model": repr(self.model), "initial": self.initial, "files": vars(self.files),
            "batching": repr(self.batching), "optimizer": repr(self.optimizer),
            "loop": repr(self.loop), "options": repr(options),
            "generated": self.generated if DATA[data][0] else None,
        }  # fmt: skip

        def make() -> dict[str, Any]:
            began = time.monotonic()
            params = distill(
                directory / RUN, model=self.model, files=files, batching=self.batching,
                optimizer=self.optimizer, loop=self.loop, distillation=options,
                initial=self.initial,
            )  # fmt: skip
            seconds = time.monotonic() - began
            vocabulary = find_vocabulary(resolve(self.target, "target"))
            shutil.rmtree(directory / DRAFT, ignore_errors=True)  # Of other settings.
            save_huggingface(directory / DRAFT, self.model, params, vocabulary)
            return {"seconds": seconds}

        return kept_of(directory / TRAINED, settings, make)

    def _measure(self, directory: Path, temperature: float) -> dict[str, Any]:
        names = {f"{loss}_{data}": (loss, data) for loss, data in self.cells}
        drafts = {name: str(directory.parent / name / DRAFT) for name in names}
        if self.initial is not None:
            drafts[START] = self.initial
        run = AlphaRun(
            task=self.task(), target=self.target, drafts=tuple(drafts.values()),
            sampling=SamplingConfig(temperature), num_examples=self.alpha_examples,
            max_input_len=self.max_input_len, max_decode_len=self.max_decode_len,
        )  # fmt: skip
        found = run.execute(directory)["drafts"]
        wanted = "alpha", "alpha_interval", "num_tokens", "num_texts"
        return {name: {key: found[draft][key] for key in wanted} for name, draft in drafts.items()}
