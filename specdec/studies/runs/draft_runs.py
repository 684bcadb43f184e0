"""Drafts of one target beside each other: acceptance by depth, tokens a call, cost and speedup."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.checkpoints.hf_files import stored_parameters
from specdec.checkpoints.loading import resolve
from specdec.data.tasks import Task, evenly
from specdec.decoding.batches import Block
from specdec.decoding.options import Decoding
from specdec.drafters.base import DraftSpec
from specdec.drafters.shape import Tree
from specdec.runs.decode_run import DecodeRun
from specdec.runs.prepared_run import PreparedRun
from specdec.studies.runs.alpha_run import slug
from specdec.types import SamplingConfig

Shape = int | Sequence[int]  # gamma, or a tree's branching.


@dataclasses.dataclass(frozen=True)
class DraftRuns:
    """Each draft in one or more shapes, at temperatures 0 and 1.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references, once; ``num_examples`` of them, evenly spread, are
        decoded, and ``timing_examples`` of those are timed, ``timing_repetitions`` times.
      drafts: for each label of the table the draft, as in :func:`specdec.load_pair`, and its
        shapes: gammas, and branchings of trees.
      All else: see :class:`specdec.runs.decode_run.DecodeRun`.
    """

    name: str
    task: Callable[[], Task]
    target: str
    drafts: Mapping[str, tuple[str | DraftSpec, Sequence[Shape]]]
    max_input_len: int
    max_decode_len: int
    num_examples: int
    timing_examples: int
    timing_repetitions: int
    seed: int = 0

    @functools.cached_property
    def _task(self) -> Task:
        task = self.task()
        return Task.of(task.name, evenly(task.examples, self.num_examples), task.metrics)

    def decode_run(self, draft: str | DraftSpec, shape: Shape, temperature: float) -> DecodeRun:
        """The decode of one row of the table."""
        return DecodeRun(
            task=self._task, target=self.target, draft=draft, dtype="float32",
            decoding=Decoding(
                **settings_of(shape), sampling=SamplingConfig(temperature), seed=self.seed,
                max_input_len=self.max_input_len, max_decode_len=self.max_decode_len,
            ),
            num_examples=None,
            timing_examples=self.timing_examples, timing_repetitions=self.timing_repetitions,
        )  # fmt: skip

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for label, (draft, shapes) in self.drafts.items():
            for shape in shapes:
                for temperature in (0.0, 1.0):
                    run = self.decode_run(draft, shape, temperature)
                    where = (slug(self.name), "drafts", label, named(shape))
                    yield (
                        (*where, f"t{temperature:g}"),
                        lambda path, run=run: {**_decoded(run, path), **_size(run.draft)},
                    )


def named(shape: Shape) -> str:
    """A shape's name in directories and results."""
    return f"chain-{shape}" if isinstance(shape, int) else f"tree-{'-'.join(map(str, shape))}"


def settings_of(shape: Shape) -> dict[str, Any]:
    """A shape as a decode's settings."""
    if isinstance(shape, int):
        return {"gamma": shape, "tree": None}
    return {"gamma": None, "tree": Tree(tuple(shape))}


def _decoded(run: DecodeRun, path: Path) -> dict[str, Any]:
    """What the table needs of a decode, which is on disk or done now."""
    prepared = PreparedRun.without_gin(run, path)
    found = prepared.finished() or prepared.execute("")
    blocks = (block for row in prepared.rows() for block in row.blocks)
    return found | {"by_depth": by_depth(blocks)}


def by_depth(blocks: Iterable[Block]) -> list[float]:
    """How likely a guess at depth 1, 2, ... is accepted where those before it were.

    A depth that was not looked at, since the row ended before it, does not count.
    """
    examined, accepted = Counter(), Counter()
    for block in blocks:
        kept = len(block.accepted)
        judged = kept + (block.correction is not None and bool(block.rejected))
        accepted.update(range(kept))
        examined.update(range(judged))
    return [accepted[depth] / count for depth, count in sorted(examined.items())]


def _size(draft: str | DraftSpec) -> dict[str, int | None]:
    """Its own parameters; None for a draft that is no file of weights."""
    source = Path(resolve(str(draft), "draft"))
    return {"parameters": stored_parameters(source) if source.is_dir() else None}
