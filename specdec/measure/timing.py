"""Timing of decodes in turns, so that a busy machine slows all of them alike.

This is the one timer of c and v. A decode of one block beside the whole one tells what a decode
does once, its encoders above all, from what each block takes. Decodes whose guesses cost nothing
tell v, and the difference c.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from specdec.core.stats import RunStats
from specdec.core.topology import Topology, TracedTopology
from specdec.decoding.batch_decoder import BatchDecoder, LoopDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamDecoder
from specdec.drafters.random import RandomDrafter
from specdec.types import Draft, DrafterState, Params, RandomSource, RuleStates
from specdec.verifiers.point_mass import PointMassVerifier

T = TypeVar("T")
# Given what this process has measured, the value that all processes go on with that share a target.
Agree = Callable[[Any], Any]


def alone(value: T) -> T:
    """The value itself: one process has nobody to agree with."""
    return value


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Median, least and largest of at least one value."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Timed:
    """Decodes of some batches in one way.

    Attributes:
      seconds: of all.
      starts: of as many decodes of one block; 0 if those were not asked for.
      results: of each batch.
    """

    seconds: float
    starts: float
    results: tuple[Any, ...]

    @property
    def tokens(self) -> int:
        """Emitted by all rows."""
        return sum(int(np.sum(each.stats.emitted)) for each in self.results)

    @property
    def calls(self) -> int:
        """Calls of the target; a batch goes on until its slowest row is done."""
        return sum(int(np.max(each.stats.target_calls)) for each in self.results)

    @property
    def block(self) -> float:
        """Seconds of a block, without the work that a decode does once."""
        more = self.calls - len(self.results)
        if more <= 0 or self.seconds <= self.starts:  # Every decode was one block.
            return self.seconds / self.calls
        return (self.seconds - self.starts) / more

    @property
    def start(self) -> float:
        """Seconds of the work that a decode does once, its encoders above all."""
        return max(0.0, self.starts / len(self.results) - self.block)

    @property
    def blocks(self) -> float:
        """Seconds of all blocks, without the work that a decode does once."""
        return self.seconds - len(self.results) * self.start

    def stats(self, depth: int) -> RunStats:
        """Counts of all rows."""
        rows = sum(int(np.sum(each.stats.target_calls > 0)) for each in self.results)
        return RunStats.total([each.stats for each in self.results], rows, depth)


def time_in_turns(
    decoders: Mapping[str, LoopDecoder[Any]], batches: Sequence[Batch], repetitions: int, *,
    until: float = math.inf, limit: int | None = None, starts: bool = False,
    passed: Callable[[], object] = lambda: None, agree: Agree = alone,
) -> list[dict[str, Timed]]:  # fmt: skip
    """Times whole decodes of each batch in all ways, one after the other, in turning order.

    Args:
      until: of ``time.monotonic``, when to stop. It leaves out batches of the first repetition, but
        never the first batch, and whole later repetitions.
      limit: tokens that a row may emit.
      starts: whether decodes of one block are timed too.
      passed: called after each batch.
      agree: see :data:`Agree`.

    Returns:
      each repetition's times by the decoders' names. Before them each decoder runs once on batches
      of each shape, which compiles.
    """
    for decoder in decoders.values():
        for batch in {batch.shape: batch for batch in batches}.values():
            decoder.decode(batch, limit=limit)
    ways = [(name, only) for name in decoders for only in (limit, 1)[: 1 + starts]]
    found: list[dict[str, Timed]] = []
    turn = 0
    for _ in range(repetitions):
        seconds = dict.fromkeys(ways, 0.0)
        results: dict[str, list[Any]] = {name: [] for name in decoders}
        for batch in batches:
            if turn and agree(time.monotonic() > until):
                break
            for name, only in ways if turn % 2 == 0 else reversed(ways):
                began = time.perf_counter()
                result = decoders[name].decode(batch, limit=only)
                seconds[name, only] += agree(time.perf_counter() - began)
                if only == limit:
                    results[name].append(result)
            turn += 1
            passed()
        if found and len(results[ways[0][0]]) < len(found[0][ways[0][0]].results):
            break
        found.append({
            name: Timed(seconds[name, limit], seconds.get((name, 1), 0.0), tuple(results[name]))
            for name in decoders
        })  # fmt: skip
    return found


def medians(repetitions: Sequence[Mapping[str, Timed]]) -> dict[str, Timed]:
    """Median seconds of each way, with the results of the first repetition."""
    return {
        name: Timed(
            statistics.median(each[name].seconds for each in repetitions),
            statistics.median(each[name].starts for each in repetitions),
            first.results,
        )
        for name, first in repetitions[0].items()
    }


class _FreePointMasses(RandomDrafter):
    """Guesses without a q."""

    def propose(
        self, params: Params, state: DrafterState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, DrafterState]:
        draft, state = super().propose(params, state, random, rules)
        return dataclasses.replace(draft, probs=None, independent=False), state


Decoder = TypeVar("Decoder", bound=BatchDecoder | BeamDecoder)


def without_draft(fast: Decoder, shape: Topology | None = None) -> Decoder:
    """This decoder with guesses that cost nothing; of beams, plain ones in calls as wide.

    Args:
      shape: of a chain's or a tree's guesses; that of the draft's if None.
    """
    if isinstance(fast, BeamDecoder):
        return dataclasses.replace(fast, draft=None, width=fast.engine.nodes)
    vocab_size, own = fast.engine.target.vocab_size, fast.engine.topology
    drawn = not isinstance(fast.engine.verifier, PointMassVerifier)
    if shape is None and isinstance(own, TracedTopology):
        shape = Topology.of_sizes(own.size, own.depth, own.siblings)
        drawn = False  # They are the draft's likeliest.
    free = (RandomDrafter if drawn else _FreePointMasses)(shape or own, vocab_size)
    engine = dataclasses.replace(fast.engine, drafter=free)
    params = dataclasses.replace(fast.params, drafter=())
    return dataclasses.replace(fast, engine=engine, params=params)
