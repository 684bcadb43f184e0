"""What a run tells the person who waits for it."""

from __future__ import annotations

import datetime
import sys
import time

_SECONDS = 10


def say(message: str) -> None:
    """Tells it on stderr: stdout is for results."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """Says now and then how many rows are done, how fast, and how long the others will take.

    Rates are of this session alone, its compilations included.

    Args:
      total: rows of the run.
      done: those that an earlier session decoded.
    """

    def __init__(self, total: int, done: int):
        self._total, self._before, self._rows, self._tokens = total, done, 0, 0
        self._began = self._said = time.monotonic()
        say(f"Decoding {total} rows{f', {done} of them before' if done else ''}")

    @property
    def done(self) -> int:
        """Rows of the run that are decoded."""
        return self._before + self._rows

    def add(self, rows: int, tokens: int) -> None:
        """Counts what was decoded; says something unless it did so a moment ago."""
        self._rows += rows
        self._tokens += tokens
        now = time.monotonic()
        if now - self._said < _SECONDS and self.done < self._total:
            return
        self._said = now
        seconds = max(now - self._began, 1e-9)
        left = round(seconds / self._rows * (self._total - self.done))
        rest = f", about {datetime.timedelta(seconds=left)} left" if left else ""
        say(
            f"  {self.done} of {self._total} rows, {self._rows / seconds:.1f} rows/s, "
            f"{self._tokens / seconds:.0f} tokens/s{rest}"
        )
