"""A control loop executed speculatively beside the same loop without: alpha, times, prediction."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from specdec import execution
from specdec.core import files
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.reproduction.control import UPRIGHT, Pendulum, height
from specdec.runs.alpha_run import slug

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
        path = directory / RESULT
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        content = self._measured(dataclasses.replace(self.pendulum, law_steps=steps))
        directory.mkdir(parents=True, exist_ok=True)
        files.write_json(path, content)
        return content

    def _measured(self, pendulum: Pendulum) -> dict[str, Any]:
        link, start = pendulum.link(), pendulum.start()
        done: dict[str, list[execution.Executed]] = {"plain": [], "speculative": []}

        def loop(name: str) -> None:
            run = execution.execute if name == "speculative" else execution.execute_plainly
            links = itertools.repeat(link, self.decisions)
            done[name].append(run(links, start, seed=self.seed))

        works = [
            Work("law", lambda: link.law(start), 0), Work("guess", lambda: link.guess(start), 0),
            Work("step", lambda: link.step(start, 1), 0),
            *(Work(name, lambda name=name: loop(name), 0) for name in done),
        ]  # fmt: skip
        seconds = time_interleaved(works, self.repetitions)
        spread = {name: Spread.of(each[name] for each in seconds) for name in seconds[0]}
        law, guess, step = (spread[name].median for name in ("law", "guess", "step"))
        found = done["speculative"][-1]
        measured = Spread.of(each["plain"] / each["speculative"] for each in seconds)
        return {
            "decisions": self.decisions, "alpha": found.alpha,
            "accepted": sum(found.accepted),
            "seconds": {name: dataclasses.asdict(each) for name, each in spread.items()},
            "predicted": execution.speedup(found.alpha, law, guess, step),
            "counted": execution.speedup(
                sum(found.accepted) / self.decisions, law, guess, step
            ),
            "measured": dataclasses.asdict(measured),
            "height": {"reached": float(jnp.max(height(found.state))), "upright": UPRIGHT},
        }  # fmt: skip
