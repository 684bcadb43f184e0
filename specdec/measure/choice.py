"""A choice of "auto", its reason, and where it is kept for the next time."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.core.files import read_object, write_json
from specdec.core.theory import levels_per_call
from specdec.decoding.options import AutoName
from specdec.drafters.shape import Chain, Shape, Tree


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to decode.

    Attributes:
      shape: of a block's guesses; of speculative beams a chain, whose gamma are the draft's levels.
      tokens: that a block emits, or levels that a call advances, as predicted; None where the
        shape is found while decoding.
      predicted: speedup over plain decoding, without the encoders.
      measured: that of whole decodes, for each token; None where there was none.
    """

    shape: Shape
    tokens: float | None = None
    predicted: float | None = None
    measured: float | None = None

    def __str__(self) -> str:
        return str(self.shape)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fastest way found. ``print`` gives the reason.

    Attributes:
      name: "gamma", "tree" or "beams".
      shape: of the first candidate; None for plain decoding.
      accepted: how likely each guess of a position is to be the one that is accepted, by its rank;
        a chain's one is alpha. Of beams: the share of calls that advanced 0, 1, 2, ... levels.
      cost_ratio: c of a level of one guess; of beams, of a level of them.
      verify_ratio: v by the guesses of a call.
      candidates: the fastest first; those that were timed before those that were not. None, and
        nothing else, if time was up before anything was measured.
      note: of measurements that are missing because time was up; empty if none are.
    """

    name: AutoName
    shape: Shape | None
    accepted: tuple[float, ...]
    cost_ratio: float
    verify_ratio: Mapping[int, float]
    candidates: tuple[Candidate, ...]
    note: str = ""

    @property
    def alpha(self) -> float | None:
        """Probability that the first guess of a position is accepted; None if not measured."""
        return self.accepted[0] if self.accepted else None

    @property
    def levels(self) -> int:
        """Guesses in a row; 0 for plain decoding."""
        return self.shape.levels if self.shape else 0

    def __str__(self) -> str:
        if not self.candidates:
            return self.note
        best = self.candidates[0]
        speedup = best.predicted if best.measured is None else best.measured
        how = "predicted" if best.measured is None else "measured here"
        if speedup is None:
            head = "Decoding plainly."
        elif self.shape:
            head = f"{best}: {speedup:.2f} x plain decoding, {how}."
        else:
            head = (
                f"Speculation does not pay here: the best way, {best}, is {speedup:.2f} times as "
                f"fast as plain decoding, {how}. Decoding plainly."
            )
        timed = [each for each in self.candidates[1:] if each.measured is not None]
        if timed:
            head += f" Others: {', '.join(f'{each} {each.measured:.2f}' for each in timed)}."
        ranks = "/".join(f"{each:.2f}" for each in self.accepted[:4])
        accepted = {"gamma": f"alpha {ranks}", "tree": f"acceptance by rank {ranks}"}.get(self.name)
        if accepted is None:
            most = len(self.accepted) - 2
            accepted = f"{levels_per_call(self.accepted, most):.2f} levels a call with gamma {most}"
        sizes = "".join(f", v({size}) {v:.2f}" for size, v in self.verify_ratio.items())
        parts = (head, f"With {accepted}, c {self.cost_ratio:.2f}{sizes}.", self.note)
        return " ".join(filter(None, parts))


def _path(directory: Path, key: str) -> Path:
    return directory / "choices" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _shape(found: Mapping[str, Any] | None) -> Shape | None:
    if found is None:
        return None
    return Chain(**found) if "gamma" in found else Tree(**found)


def remembered(directory: Path, key: str) -> Choice | None:
    """The choice made before for ``key``; None if there is none, or none that can be read."""

    try:
        kept = read_object(_path(directory, key))
        if kept["key"] != key:
            return None
        found = dict(kept["choice"])
        found["shape"] = _shape(found["shape"])
        found["accepted"] = tuple(found["accepted"])
        found["verify_ratio"] = {int(size): v for size, v in found["verify_ratio"].items()}
        found["candidates"] = tuple(
            Candidate(**{**each, "shape": _shape(each["shape"])}) for each in found["candidates"]
        )
        return Choice(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(directory: Path, key: str, choice: Choice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        write_json(_path(directory, key), {"key": key, "choice": dataclasses.asdict(choice)})
