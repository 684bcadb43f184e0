"""Timing of work that is interleaved, so that a busy machine slows all of it alike."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Sequence

import jax


@dataclasses.dataclass(frozen=True)
class Work:
    """A piece of work to be timed."""

    name: str  # Times of the same name in one repetition are added up.
    run: Callable[[], object]  # Does it; its result is waited for.
    program: Hashable  # Works of the same name and program share compiled code.
    # Runs before each `run`, unmeasured: it decides what the processor's caches hold.
    before: Callable[[], object] | None = None


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


def time_interleaved(works: Sequence[Work], repetitions: int) -> list[dict[str, float]]:
    """Seconds by name for each repetition, after each program has run once unmeasured.

    Every other repetition runs in reverse, so that nothing always comes first.
    """
    for work in {(work.name, work.program): work for work in works}.values():
        jax.block_until_ready(work.run())
    seconds = []
    for repetition in range(repetitions):
        totals = dict.fromkeys((work.name for work in works), 0.0)
        for work in works if repetition % 2 == 0 else reversed(works):
            if work.before is not None:
                jax.block_until_ready(work.before())
            start = time.perf_counter()
            jax.block_until_ready(work.run())
            totals[work.name] += time.perf_counter() - start
        seconds.append(totals)
    return seconds
