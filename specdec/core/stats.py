"""Counts of a whole run, and rates computed from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from specdec.types import Stats

_COUNTS = ("target_calls", "proposed", "examined", "accepted", "emitted", "dropped")


@dataclasses.dataclass(frozen=True)
class RunStats:
    """Totals over rows. The rates' names and meanings are those of docs/notation.md.

    Attributes:
      gamma: guesses in a row in a block, levels of a tree; 0 for plain decoding.
      num_rows: rows decoded.
      target_calls, proposed, examined, accepted, emitted, dropped: see
        :class:`specdec.types.Stats`.
      accepted_histogram: blocks by the number of guesses accepted, gamma + 1 counts.
      accepted_by_rank: guesses accepted by their index among their siblings, 1 count for a chain.
      acceptance_prob_sum: sum of the probabilities of accepting a guess over examined levels.
    """

    gamma: int
    num_rows: int
    target_calls: int
    proposed: int
    examined: int
    accepted: int
    emitted: int
    dropped: int
    accepted_histogram: tuple[int, ...]
    accepted_by_rank: tuple[int, ...]
    acceptance_prob_sum: float

    @classmethod
    def total(cls, parts: Iterable[Stats], num_rows: int, gamma: int) -> RunStats:
        """Adds up per-row statistics of any number of batches."""
        parts = list(parts)
        counts = {name: sum(int(np.sum(getattr(p, name))) for p in parts) for name in _COUNTS}

        def added(name: str) -> tuple[int, ...]:
            rows = [np.sum(getattr(p, name), axis=0) for p in parts]
            return tuple(int(n) for n in np.atleast_1d(np.sum(rows, axis=0)))

        probs = [np.sum(p.acceptance_prob_sum, dtype=np.float64) for p in parts]
        return cls(
            gamma, num_rows, **counts,
            accepted_histogram=added("accepted_histogram"),
            accepted_by_rank=added("accepted_by_rank"),
            acceptance_prob_sum=float(sum(probs)),
        )  # fmt: skip

    def __add__(self, other: RunStats) -> RunStats:
        """Totals over the rows of both, which have the same gamma."""

        def added(name: str) -> Any:
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, tuple):
                return tuple(a + b for a, b in zip(mine, its, strict=True))
            return mine + its

        names = (field.name for field in dataclasses.fields(self))
        return dataclasses.replace(self, **{n: added(n) for n in names if n != "gamma"})

    @property
    def alpha(self) -> float | None:
        """Mean of sum_x min(p, q) over examined positions (Corollary 3.6); None without any.

        Of a tree: of the probability that one of a position's guesses is accepted.
        """
        return self.acceptance_prob_sum / self.examined if self.examined else None

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / examined; None without any."""
        return self.accepted / self.examined if self.examined else None

    @property
    def draft_utilization(self) -> float | None:
        """accepted / proposed; None without any."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens emitted per target call; None without any."""
        return self.emitted / self.target_calls if self.target_calls else None
