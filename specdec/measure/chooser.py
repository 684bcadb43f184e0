"""The fastest way to decode here, measured within a bounded time: the base of all choices.

1. The programs of plain decoding and of a few probes are compiled, all at once.
2. They decode rows: how many guesses are accepted, and what blocks cost.
3. From that the speedup of every candidate is predicted.
4. The most promising ones decode the rows too, in turns. The fastest is chosen.

When time is up, the choice uses what is known by then, and its text says so. Nothing is assumed:
where nothing could be measured, plain decoding is chosen.
"""

from __future__ import annotations

import contextvars
import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np

from specdec.core.machine import num_cores
from specdec.core.progress import Progress
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.options import AutoName
from specdec.drafters.shape import Shape
from specdec.measure.choice import Candidate, Choice
from specdec.measure.timing import Agree, Timed, alone, medians, time_in_turns

PLAIN = "plain decoding"
# Shares of the time by whose end something is done: the probes are compiled, those without which
# nothing can be measured, the probes are timed, the candidates compiled.
_COMPILED, _NEEDED, _PROBED, _TRIED = 0.55, 0.85, 0.7, 0.9
# A choice takes at most.
SECONDS: dict[AutoName, float] = {"gamma": 30.0, "tree": 60.0, "beams": 60.0}
_REPETITIONS = 3  # Of a row's decodes, while there is time.
_FEWEST_TOKENS = 4  # Of a row, where decoding is slow.
_WORTH = 1.05  # A speedup below this is within what measurements differ by: decode plainly.

Decoders = Mapping[str, LoopDecoder[Any]]


class SearchSpace(Protocol):
    """Candidates to choose from: values of gamma, trees, or values of the gamma of beams."""

    @property
    def name(self) -> AutoName:
        """Name of this choice."""
        ...

    def probes(self) -> Decoders:
        """Decoders to measure first. The first three are needed, one of which is PLAIN.

        A probe that is a candidate has its name.
        """
        ...

    def estimate(self, found: Mapping[str, Timed]) -> Choice:
        """Candidates by the timed probes, the most promising first; none is chosen."""
        ...

    def shortlist(self, estimate: Choice) -> Sequence[Candidate]:
        """The candidates to time."""
        ...

    def decoder(self, shape: Shape) -> LoopDecoder[Any]:
        """A decoder of this shape."""
        ...


def choose(
    space: SearchSpace, batches: Sequence[Batch], max_decode_len: int, agree: Agree = alone
) -> Choice:
    """Measures on batches of one shape, and chooses.

    Args:
      max_decode_len: tokens a row may emit.
      agree: see :data:`specdec.measure.timing.Agree`.

    Raises:
      ValueError: the verifier cannot verify what the draft makes.
    """
    seconds = SECONDS[space.name]
    with _Session(space.name, seconds, agree) as session:
        probes = space.probes()
        needed = list(probes)[:3]
        ready = session.compile(probes, batches[0], _COMPILED, needed)
        found, limit = {}, 0
        if all(name in ready for name in needed):
            limit = session.affordable(ready, batches[0], max_decode_len)
        if limit:
            found = session.time(
                "measuring acceptance and costs", ready, batches, _PROBED, limit, starts=True
            )
        if not found:
            note = f"Nothing could be measured within {seconds:.0f} s. Decoding plainly."
            return Choice(space.name, None, (), 0.0, {}, (), note)
        estimate = space.estimate(found)
        tried = {str(each): each for each in space.shortlist(estimate)}
        more = {
            name: space.decoder(each.shape) for name, each in tried.items() if name not in ready
        }
        ready |= session.compile(more, batches[0], _TRIED)
        best = {name: ready[name] for name in (PLAIN, *tried) if name in ready}
        times = {}
        if len(best) > 1:
            times = session.time("timing the best", best, batches, 1.0, limit)
    note = ""
    if missed := [name for name in tried if name not in times]:
        note = f"Time was up after {seconds:.0f} s; not timed: {', '.join(missed)}."
    return _decided(estimate, times, note)


def _decided(estimate: Choice, times: Mapping[str, Timed], note: str) -> Choice:
    """The fastest candidate, if it is clearly faster than plain decoding."""
    timed = [
        dataclasses.replace(each, measured=_speed(times[str(each)]) / _speed(times[PLAIN]))
        for each in estimate.candidates
        if str(each) in times
    ]
    timed.sort(key=lambda each: -(each.measured or 0.0))
    rest = [each for each in estimate.candidates if str(each) not in times]
    best = (timed or rest)[0]
    speedup = best.measured if timed else best.predicted
    return dataclasses.replace(
        estimate, shape=best.shape if speedup is not None and speedup > _WORTH else None,
        candidates=(*timed, *rest), note=note,
    )  # fmt: skip


def _speed(times: Timed) -> float:
    """Tokens a second."""
    return times.tokens / times.seconds


class _Session:
    """A choice that is under way: its progress, and until when its parts may last."""

    def __init__(self, name: str, seconds: float, agree: Agree):
        self._agree = agree
        self._name = f"Choosing {name}, {seconds:.0f} s at most"
        self._began, self._seconds = time.monotonic(), seconds
        self._pool, self._ended = ThreadPoolExecutor(num_cores()), False

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        # A compilation cannot be stopped; nobody waits for it.
        self._ended = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _left(self, share: float) -> float:
        """Seconds until a share of the time is over."""
        return self._began + share * self._seconds - time.monotonic()

    def _show(self, what: str, total: int, unit: str) -> Progress:
        progress = Progress(total, unit, until=self._began + self._seconds)
        progress.begin(f"{self._name}: {what}")
        return progress

    def compile(
        self, decoders: Decoders, batch: Batch, share: float, needed: Sequence[str] = ()
    ) -> dict[str, LoopDecoder[Any]]:
        """Decoders whose programs are there in time; for those that are needed there is more."""
        waiting: dict[Future[Any], str] = {}
        ready: list[str] = []
        if not decoders:
            return {}
        with self._show("compiling", len(decoders), "programs") as progress:

            def take(timeout: float) -> None:
                for done in wait(waiting, timeout, return_when="FIRST_COMPLETED").done:
                    done.result()
                    ready.append(waiting.pop(done))
                    progress.add()
                progress.refresh()

            for name, decoder in decoders.items():
                context = contextvars.copy_context()  # The platform to trace for is in it.
                waiting[self._pool.submit(context.run, self._compile, decoder, batch)] = name
            while waiting:
                late = _NEEDED if any(name in needed for name in waiting.values()) else share
                left = self._left(max(late, share))
                if left <= 0:
                    break
                take(min(left, 1.0))
            for future in waiting:
                future.cancel()
        return {name: decoders[name] for name in self._agree(ready)}

    def _compile(self, decoder: LoopDecoder[Any], batch: Batch) -> None:
        for program in decoder.programs(batch):
            if not self._ended:
                program.compile()

    def affordable(self, ready: Decoders, batch: Batch, max_decode_len: int) -> int:
        """Tokens of a row that each way can decode in the time that the probes have; 0 if none."""
        plain, few = ready[PLAIN], min(_FEWEST_TOKENS, max_decode_len)
        # Of each way there is a decode to warm up, one that is timed, and one of one block.
        seconds = (_PROBED - _COMPILED) * self._seconds / (3 * len(ready))

        def took(limit: int) -> float:
            began = time.monotonic()
            plain.decode(batch, limit=limit)
            return self._agree(time.monotonic() - began)

        took(1)  # The first run takes longer.
        first = took(1)
        if first > seconds:
            return 0
        step = max(took(few) - first, 1e-6) / max(few - 1, 1)
        return int(np.clip((seconds - 2 * first) / step, few, max_decode_len))

    def time(
        self, what: str, ready: Decoders, batches: Sequence[Batch], share: float, limit: int, *,
        starts: bool = False,
    ) -> dict[str, Timed]:  # fmt: skip
        """Medians of :func:`time_in_turns`; nothing where time is up."""
        if self._agree(self._left(1.0)) <= 0:
            return {}
        with self._show(what, _REPETITIONS * len(batches), "batches") as progress:
            found = time_in_turns(
                ready, batches, _REPETITIONS, until=self._began + share * self._seconds,
                limit=limit, starts=starts, passed=progress.add, agree=self._agree,
            )  # fmt: skip
        return medians(found)
