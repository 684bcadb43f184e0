"""A control loop executed speculatively beside the same loop without: alpha, times, prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from specdec import execution
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.studies.control import Pendulum
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept_of

RESULT = "execution.json"


def again(link: execution.Link, state: Any, x: int) -> execution.Link:
    """The link with its f and g of one state and sample, whatever it is given."""
    return execution.Link(
        lambda _: link.distribution(state), link.guess, lambda _, drawn: link.step(state, x)
    )


@dataclasses.dataclass(frozen=True)
class ControlRuns:
    """A pendulum's control loop with planners that differ in how long they take.

    Attributes:
      name: short, for tables and directories.
      distribution_steps: of the planner, one loop each; those of the simulator do not change.
      decisions: in a loop.
      repetitions: of each loop, with and without speculation in turn.
    """

    name: str
    distribution_steps: tuple[int, ...]
    decisions: int
    repetitions: int
    pendulum: Pendulum = dataclasses.field(default_factory=Pendulum)
    seed: int = 0

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for steps in self.distribution_steps:
            index = (slug(self.name), "execution", f"distribution_steps{steps}")
            yield index, lambda directory, steps=steps: self._piece(directory, steps)

    def _piece(self, directory: Path, steps: int) -> dict[str, Any]:
        pendulum = dataclasses.replace(self.pendulum, distribution_steps=steps)
        settings = {
            "pendulum": dataclasses.asdict(pendulum), "decisions": self.decisions,
            "repetitions": self.repetitions, "seed": self.seed,
        }  # fmt: skip
        return kept_of(directory / RESULT, settings, lambda: self._measured(pendulum))

    def _measured(self, pendulum: Pendulum) -> dict[str, Any]:
        link, start = pendulum.link(), pendulum.start()
        loop = [link] * self.decisions
        found = execution.execute(loop, start, seed=self.seed)
        # Everything is timed in the states that this loop came through: a function takes longer in
        # some of them, and a loop without guesses draws others.
        states = [start]
        for x in found.samples[:-1]:
            states.append(link.step(states[-1], x))
        indices = list(zip(states, found.samples, strict=True))

        same_loop = [again(link, *index) for index in indices]

        def side_by_side() -> None:
            with ThreadPoolExecutor(1) as pool:
                for state, x in indices:
                    distribution = pool.submit(execution.finished, link.distribution, state)
                    execution.finished(link.guess, state)
                    execution.finished(link.step, state, x)
                    distribution.result()

        works = {
            "distribution": lambda: [
                execution.finished(link.distribution, state) for state in states
            ],
            "guess": lambda: [execution.finished(link.guess, state) for state in states],
            "step": lambda: [execution.finished(link.step, *index) for index in indices],
            "side_by_side": side_by_side,
            "plain": lambda: execution.execute_plainly(same_loop, start, seed=self.seed).seconds,
            "speculative": lambda: execution.execute(loop, start, seed=self.seed).seconds,
        }
        times = time_interleaved([Work(*each, 0) for each in works.items()], self.repetitions)
        accepted = sum(found.accepted)

        # Within a repetition, since a machine's speed changes between them.
        def slowdown(each: dict[str, float]) -> float:
            return each["side_by_side"] / max(each["distribution"], each["guess"] + each["step"])

        def predicted(each: dict[str, float], alpha: float) -> float:
            parts = (each[name] for name in ("distribution", "guess", "step"))
            return execution.speedup(alpha, *parts, slowdown=slowdown(each))

        def counted(each: dict[str, float]) -> float:
            return predicted(each, accepted / self.decisions)

        def measured(each: dict[str, float]) -> float:
            return each["plain"] / each["speculative"]

        def spread(value: Callable[[dict[str, float]], float]) -> dict[str, float]:
            return dataclasses.asdict(Spread.of(map(value, times)))

        return {
            "decisions": self.decisions, "alpha": found.alpha, "accepted": accepted,
            "seconds": {
                name: spread(lambda each, name=name: each[name] / self.decisions) for name in works
            },
            "slowdown": spread(slowdown),
            "predicted": spread(lambda each: predicted(each, found.alpha)),
            "counted": spread(counted), "measured": spread(measured),
            "measured_over_counted": spread(lambda each: measured(each) / counted(each)),
        }  # fmt: skip
