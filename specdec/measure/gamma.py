"""gamma chosen by measurement: c, v(gamma) and alpha on this machine, then theory."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from specdec.core import theory
from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.measure import costs
from specdec.measure.progress import Progress
from specdec.measure.remembered import keep, recall
from specdec.measure.timing import Work, time_interleaved

CANDIDATES = (1, 2, 3, 4, 5, 7, 10, 15)
PROBE = 3  # The gamma with which c and alpha are measured.
_REPETITIONS = 7
_FILE = "gamma.json"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured on this machine."""

    cost_ratio: float  # c.
    verify_ratio: Mapping[int, float]  # v by gamma.
    # Both encoders' time for a batch over a plain step, (target, draft).
    encoders: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class GammaChoice:
    """The gamma with the highest predicted speedup; 0 is plain decoding."""

    gamma: int
    predicted: Mapping[int, float]  # Speedup of a whole decode, with encoders, by gamma.
    alpha: float
    cost_ratio: float
    verify_ratio: Mapping[int, float]
    tree: None = dataclasses.field(default=None, init=False)  # It is a chain.

    def __str__(self) -> str:
        best = max(self.predicted, key=lambda gamma: self.predicted[gamma])
        measured = (
            f"alpha {self.alpha:.2f}, c {self.cost_ratio:.2f}, "
            f"v({best}) {self.verify_ratio[best]:.2f} measured here"
        )
        if self.gamma:
            return f"gamma {self.gamma}: {self.predicted[self.gamma]:.2f} x predicted ({measured})."
        return (
            f"Speculation does not pay here: the best gamma, {best}, is predicted to be "
            f"{self.predicted[best]:.2f} times as fast as plain decoding ({measured}). "
            "Decoding plainly."
        )


def choose(alpha: float, tokens: float, measured: Costs) -> GammaChoice:
    """The gamma that maximises the predicted speedup of a whole decode.

    (e_t + n) / (e_t + e_d + n / s(gamma)), in plain steps, where s is
    (1 - alpha^(gamma+1)) / (1 - alpha) / (gamma c + v(gamma)), n the tokens of a row and e_t, e_d
    the encoders' times.

    Args:
      tokens: n.
    """
    target, draft = measured.encoders

    def whole(gamma: int, v: float) -> float:
        decoder = theory.speedup(alpha, gamma, measured.cost_ratio, v)
        return (target + tokens) / (target + draft + tokens / decoder)

    predicted = {gamma: whole(gamma, v) for gamma, v in measured.verify_ratio.items()}
    best = max(predicted, key=lambda gamma: predicted[gamma])
    gamma = best if predicted[best] > 1 else 0
    return GammaChoice(gamma, predicted, alpha, measured.cost_ratio, measured.verify_ratio)


def choose_by_measurement(
    decoder: Callable[[int], BatchDecoder], batches: Sequence[Batch], max_gamma: int
) -> GammaChoice:
    """Decodes batches to measure alpha, times the parts of a block on the first, and chooses.

    Args:
      decoder: what decodes with a gamma; 0 is plain decoding.
      batches: of one shape.
      max_gamma: candidates beyond it are left out.
    """
    probe = min(PROBE, max_gamma)
    fast = decoder(probe)
    num_rows = sum(int(np.sum(batch.row_ids >= 0)) for batch in batches)
    with Progress(len(batches) + 1, "steps") as progress:
        progress.begin("Choosing gamma: decoding, for alpha")
        found = []
        for batch in batches:
            found.append(fast.decode(batch).stats)
            progress.add(kind="decode")
        stats = RunStats.total(found, num_rows, probe)
        progress.begin("Choosing gamma: timing the parts of a block, for c and v")
        measured = measure(decoder, probe, batches[0], max_gamma)
        progress.add()
    return choose(stats.alpha or 0.0, stats.emitted / stats.num_rows, measured)


def measure(
    decoder: Callable[[int], BatchDecoder], probe: int, batch: Batch, max_gamma: int
) -> Costs:
    """c with ``probe`` guesses, and v of every candidate."""
    plain, fast = decoder(0), decoder(probe)
    gammas = [gamma for gamma in CANDIDATES if gamma <= max_gamma]
    loops = {
        f"verified {gamma}": costs.loop(costs.without_draft(decoder(gamma)), batch)
        for gamma in gammas
        if gamma != probe
    }
    works = costs.step_works(plain, fast, batch) + costs.works_of(loops)
    times = time_interleaved([*works, *_starts(plain, fast, batch, works)], _REPETITIONS)
    times = [each | costs.step_seconds(each, probe) for each in times]
    times = [each | {"drafter_start": each["fast_start"] - each["plain_start"]} for each in times]

    def ratio(name: str, over: str) -> float:
        return statistics.median(each[name] / each[over] for each in times)

    names = {gamma: "verified" if gamma == probe else f"verified {gamma}" for gamma in gammas}
    return Costs(
        cost_ratio=max(0.0, ratio("draft_step", "target_step")),
        verify_ratio={gamma: ratio(name, "plain") for gamma, name in names.items()},
        encoders=(
            ratio("plain_start", "target_step"),
            max(0.0, ratio("drafter_start", "target_step")),
        ),
    )


def _starts(
    plain: BatchDecoder, fast: BatchDecoder, batch: Batch, loops: Sequence[Work]
) -> Iterator[Work]:
    """The encoders alone, after ``loops`` of blocks: no decode to compile or to wait for.

    Unlike `costs.start_works`, it leaves out what a decode's first block takes longer.
    """
    loop = {work.name: work.before for work in loops}
    for name, decoder, before in (("plain_start", plain, "plain"), ("fast_start", fast, "block")):
        start = functools.partial(
            costs.start, decoder.engine, *decoder.arguments(batch),
            output_bucket=decoder.output_bucket,
        )  # fmt: skip
        yield Work(name, start, None, before=loop[before])


def remembered(directory: Path, key: str) -> GammaChoice | None:
    """The choice made before for ``key``, if any can be read."""
    try:
        found = dict(recall(directory / _FILE, key))
        for name in ("predicted", "verify_ratio"):
            found[name] = {int(gamma): value for gamma, value in found[name].items()}
        del found["tree"]
        return GammaChoice(**found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(directory: Path, key: str, choice: GammaChoice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    keep(directory / _FILE, key, dataclasses.asdict(choice))
