"""A run that measures several guesses of one position along texts of the target's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from specdec.api import Pair
from specdec.data.tasks import Task
from specdec.decoding.batches import Batch
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.shape import Tree
from specdec.measure.rows import measure_rows
from specdec.studies.measure import siblings
from specdec.studies.runs.alpha_run import AlphaRun, slug
from specdec.types import SamplingConfig


@dataclasses.dataclass(frozen=True)
class SiblingsRun(AlphaRun):
    """An :class:`AlphaRun` of :mod:`specdec.studies.measure.siblings`.

    At a temperature above 0 a draft must draw its guesses.
    """

    results: ClassVar[str] = "siblings.json"

    @property
    def _decoding(self) -> Decoding:
        # Siblings are drawn from the first one's distribution; at temperature 0 the drafter ranks
        # tokens.
        guesses = siblings.MOST if self.sampling.greedy else 1
        return super()._decoding.with_shape(Tree((guesses,)))

    def _measure(
        self, path: Path, pair: Pair, batches: Sequence[Batch], texts: dict[int, list[int]]
    ) -> dict[str, Any]:
        decoder = pair.decoder(self._decoding)

        def replay(batch: Batch, wanted: Mapping[int, int]) -> Iterator[siblings.RowSiblings]:
            given = {index: texts[row] for row, index in wanted.items()}
            found = siblings.replayed(decoder, batch, given)
            for row, index in wanted.items():
                yield siblings.row_of(row, found[index])

        return siblings.summary(measure_rows(path, batches, siblings.RowSiblings, replay))


@dataclasses.dataclass(frozen=True)
class Siblings:
    """Drafts whose siblings are measured at temperatures 0 and 1.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs, once.
      All else: see :class:`specdec.studies.runs.alpha_run.AlphaRun`.
    """

    name: str
    task: Callable[[], Task]
    target: str
    drafts: Sequence[str | DraftSpec]
    num_examples: int
    max_input_len: int
    max_decode_len: int
    dtype: str = "float32"
    seed: int = 0

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        names = ("target", "drafts", "num_examples", "max_input_len", "max_decode_len", "dtype",
                 "seed")  # fmt: skip
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        task = self.task()
        for temperature in (0.0, 1.0):
            run = SiblingsRun(task=task, sampling=SamplingConfig(temperature), **settings)
            yield (slug(self.name), "siblings", f"t{temperature:g}"), run.execute
