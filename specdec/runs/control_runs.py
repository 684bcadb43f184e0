"""A control loop executed speculatively beside the same loop without: alpha, times, prediction."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from specdec import execution
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.reproduction.control import Pendulum
from specdec.runs.alpha_run import slug
from specdec.runs.kept import kept_of

RESULT = "execution.json"


@dataclasses.dataclass(frozen=True)
class ControlRuns:
    """A pendulum's control loop with planners that differ in how long they take.

    Attributes:
      name: short, for tables and directories.
      law_steps: of the planner, one loop each; those of the simulator do not change.
      decisions: in a loop.
      repetitions: of each loop, with and without speculation in turn.
    """

    name: str
    law_steps: tuple[int, ...]
    decisions: int
    repetitions: int
    pendulum: Pendulum = dataclasses.field(default_factory=Pendulum)
    seed: int = 0

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        for steps in self.law_steps:
            place = (slug(self.name), "execution", f"law_steps{steps}")
            yield place, lambda directory, steps=steps: self._piece(directory, steps)

    def _piece(self, directory: Path, steps: int) -> dict[str, Any]:
        pendulum = dataclasses.replace(self.pendulum, law_steps=steps)
        settings = {
            "pendulum": dataclasses.asdict(pendulum), "decisions": self.decisions,
            "repetitions": self.repetitions, "seed": self.seed,
        }  # fmt: skip
        return kept_of(directory / RESULT, settings, lambda: self._measured(pendulum))

    def _measured(self, pendulum: Pendulum) -> dict[str, Any]:
        link, start = pendulum.link(), pendulum.start()
        found = self._loop(execution.execute, link, start)
        # The states that it came through: a function takes longer in some of them.
        states = [start]
        for x in found.samples[:-1]:
            states.append(link.step(states[-1], x))
        places = list(zip(states, found.samples, strict=True))

        def side_by_side() -> None:
            with ThreadPoolExecutor(1) as pool:
                for state, x in places:
                    law = pool.submit(execution.finished, link.law, state)
                    execution.finished(link.guess, state)
                    execution.finished(link.step, state, x)
                    law.result()

        works = {
            "law": lambda: [execution.finished(link.law, state) for state in states],
            "guess": lambda: [execution.finished(link.guess, state) for state in states],
            "step": lambda: [execution.finished(link.step, *place) for place in places],
            "side_by_side": side_by_side,
            "plain": lambda: self._loop(execution.execute_plainly, link, start).seconds,
            "speculative": lambda: self._loop(execution.execute, link, start).seconds,
        }
        times = time_interleaved([Work(*each, 0) for each in works.items()], self.repetitions)
        spread = {name: Spread.of(each[name] / self.decisions for each in times) for name in works}
        law, guess, step, both = (
            spread[name].median for name in ("law", "guess", "step", "side_by_side")
        )
        slowdown = both / max(law, guess + step)
        accepted = sum(found.accepted)

        def predicted(alpha: float) -> float:
            return execution.speedup(alpha, law, guess, step, slowdown=slowdown)

        return {
            "decisions": self.decisions, "alpha": found.alpha, "accepted": accepted,
            "seconds": {name: dataclasses.asdict(each) for name, each in spread.items()},
            "slowdown": slowdown, "predicted": predicted(found.alpha),
            "counted": predicted(accepted / self.decisions),
            "measured": dataclasses.asdict(
                Spread.of(each["plain"] / each["speculative"] for each in times)
            ),
        }  # fmt: skip

    def _loop(
        self, run: Callable[..., execution.Executed], link: execution.Link, start: Any
    ) -> execution.Executed:
        return run(itertools.repeat(link, self.decisions), start, seed=self.seed)
