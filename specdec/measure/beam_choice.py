"""Speculative beams or plain ones: what is the fastest here, by measurement.

1. A probe decodes with the most levels: how many of them calls advance.
2. Calls of two sizes are timed, and the draft: v and c.
3. Of each gamma the speedup is predicted (:mod:`specdec.core.theory_beams`).
4. The best two and plain beams decode the probe's rows, interleaved. The fastest is chosen.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from specdec.core.theory_beams import beam_speedup, levels_per_call
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.measure.progress import Progress
from specdec.measure.remembered import keep, recall
from specdec.measure.timing import Work, time_interleaved

GAMMAS = (1, 2, 3, 4)
_TRIED, _REPETITIONS = 2, 7
_SEARCHES = 3  # Repetitions of whole searches of many rows.
_FILE = "beams.json"
Decoder = BeamDecoder | SpeculativeBeamDecoder


@dataclasses.dataclass(frozen=True)
class BeamCandidate:
    """A gamma."""

    gamma: int
    predicted: float  # Speedup over plain beams, without the encoders.
    measured: float | None = None  # Of whole decodes of the probe's rows; None where not tried.


@dataclasses.dataclass(frozen=True)
class BeamChoice:
    """The fastest gamma; 0 is plain beams."""

    gamma: int
    draft_beams: int
    levels: float  # A call's, with the most levels of guesses.
    cost_ratio: float  # c.
    verify_ratio: Mapping[int, float]  # v by gamma.
    candidates: tuple[BeamCandidate, ...]  # The fastest first; those that were not tried last.
    tree: None = dataclasses.field(default=None, init=False)

    def __str__(self) -> str:
        best, last = self.candidates[0], max(self.verify_ratio)
        measured = (
            f"{self.draft_beams} draft beams, {self.levels:.2f} levels a call with gamma {last}, "
            f"c {self.cost_ratio:.2f}, v({last}) {self.verify_ratio[last]:.2f} measured here"
        )
        if self.gamma:
            return f"gamma {self.gamma}: {best.measured:.2f} x plain beams ({measured})."
        return (
            f"Speculation does not pay here: the best gamma, {best.gamma}, is {best.measured:.2f} "
            f"times as fast as plain beams ({measured}). Searching plainly."
        )


def choose_by_measurement(
    plain: BeamDecoder, fast: Callable[[int], SpeculativeBeamDecoder], batches: Sequence[Batch], *,
    longest: int,
) -> BeamChoice:  # fmt: skip
    """Measures on batches of one shape, and chooses.

    Args:
      fast: what searches with a gamma.
      longest: gamma at most.
    """
    gammas = [gamma for gamma in GAMMAS if gamma <= longest]
    probe = fast(gammas[-1])
    with Progress(len(batches) + 2, "steps") as progress:
        progress.begin("Choosing gamma for beams: searching, for levels a call")
        counts = np.zeros(gammas[-1] + 2, int)
        for batch in batches:
            counts += probe.search(batch).counts.levels.sum(axis=0)
            progress.add(kind="search")
        progress.begin("Choosing gamma for beams: timing calls, for c and v")
        verify, cost = measure_costs(plain, fast, gammas, batches[0])
        progress.add()
        candidates = [
            BeamCandidate(
                gamma,
                beam_speedup(levels_per_call(counts.tolist(), gamma), gamma, cost, verify[gamma]),
            )
            for gamma in gammas
        ]
        candidates.sort(key=lambda each: -each.predicted)
        progress.begin("Choosing gamma for beams: searching with the best")
        tried = measured_candidates(plain, fast, candidates[:_TRIED], batches)
        progress.add()
    best = tried[0]
    assert best.measured is not None
    return BeamChoice(
        best.gamma if best.measured > 1 else 0, probe.draft_beams,
        levels_per_call(counts.tolist(), gammas[-1]), cost, verify,
        (*tried, *candidates[_TRIED:]),
    )  # fmt: skip


def measure_costs(
    plain: BeamDecoder, fast: Callable[[int], SpeculativeBeamDecoder], gammas: Sequence[int],
    batch: Batch,
) -> tuple[dict[int, float], float]:  # fmt: skip
    """v by gamma, between measured sizes on a straight line, and c; in plain calls.

    Decodes of as many calls are compared, encoders included.
    """
    sizes = {gamma: fast(gamma).engine.nodes for gamma in gammas}
    ends = sorted({gammas[0], gammas[-1]})
    probe = fast(gammas[-1])
    decoders: dict[str, Decoder] = {"plain": plain, "probe": probe}
    for gamma in ends:
        decoders[f"v {gamma}"] = dataclasses.replace(probe, draft=None, width=sizes[gamma])
    works = [
        Work(name, lambda each=each: each.search(batch), None) for name, each in decoders.items()
    ]
    times = time_interleaved(works, _REPETITIONS)
    # Batches go on until their slowest row is done.
    calls = int(np.max(plain.search(batch).steps))
    fewer = int(np.max(probe.search(batch).counts.target_calls))

    def median(value: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(value, times))

    timed = [median(lambda t, gamma=gamma: t[f"v {gamma}"] / t["plain"]) for gamma in ends]
    tokens = [sizes[gamma] for gamma in ends]
    verify = {g: float(np.interp(size, tokens, timed)) for g, size in sizes.items()}
    blocks = median(lambda t: t["probe"] / t["plain"]) * calls / fewer
    return verify, max(0.0, (blocks - verify[gammas[-1]]) / gammas[-1])


def measured_candidates(
    plain: BeamDecoder, fast: Callable[[int], SpeculativeBeamDecoder],
    candidates: Sequence[BeamCandidate], batches: Sequence[Batch],
) -> list[BeamCandidate]:  # fmt: skip
    """With their speedups over plain beams, interleaved; the fastest first."""
    decoders: dict[int, Decoder] = {0: plain}
    decoders |= {each.gamma: fast(each.gamma) for each in candidates}
    works = [
        Work(str(gamma), lambda each=each, batch=batch: each.search(batch), batch.shape)
        for batch in batches
        for gamma, each in decoders.items()
    ]
    times = time_interleaved(works, _SEARCHES)
    found = [
        dataclasses.replace(
            each, measured=statistics.median(t["0"] / t[str(each.gamma)] for t in times)
        )
        for each in candidates
    ]
    return sorted(found, key=lambda each: -(each.measured or 0))


def remembered(directory: Path, key: str) -> BeamChoice | None:
    """The choice made before for ``key``, if any can be read."""
    try:
        found = dict(recall(directory / _FILE, key))
        found["candidates"] = tuple(BeamCandidate(**each) for each in found["candidates"])
        found["verify_ratio"] = {int(gamma): v for gamma, v in found["verify_ratio"].items()}
        del found["tree"]
        return BeamChoice(**found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(directory: Path, key: str, choice: BeamChoice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    keep(directory / _FILE, key, dataclasses.asdict(choice))
