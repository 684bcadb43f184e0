"""Progress reporting: messages and a bar while a run goes on."""

from __future__ import annotations

import io
import math
import sys
import time
import unicodedata
from collections.abc import Hashable
from typing import Any

from tqdm import tqdm

# A text can hold any character; none may steer a terminal or turn the order of what is printed.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories of those that can.
# Of these: joiners, which emoji and scripts of India and Iran need, and signs that have a shape.
_SHOWN = {0x200C, 0x200D, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x600, 0x606)}


def visible(text: str, kept: str = "") -> str:
    """Text to print: pictures for ASCII's control characters, <U+202E> for others and the like.

    Args:
      kept: control characters that stay, such as line feeds of a page.
    """
    return "".join(
        c if c in kept or unicodedata.category(c) not in _HIDDEN or ord(c) in _SHOWN else _name(c)
        for c in text
    )


def _name(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    return "\u2421" if code == 127 else f"<U+{code:04X}>"


def say(message: str, *, result: bool = False) -> None:
    """Prints a message above all bars, on stderr: stdout is for results."""
    file = sys.stdout if result else sys.stderr
    tqdm.write(visible(message, "\n\t"), file=file)
    file.flush()


class Progress(tqdm):
    """How much is done, how fast, and how long the rest will take.

    A bar on a terminal; elsewhere, in a log file say, a line every ten seconds. The last state is
    always shown. To be closed, or used with ``with``.

    Args:
      total: of what is to be done.
      unit: what is counted, such as "rows".
      done: what an earlier session did.
      name: of the whole, if it has one.
      until: of ``time.monotonic``, when it will end in any case.
    """

    monitor_interval = 0  # No thread beside.

    def __init__(
        self, total: int, unit: str, *, done: int = 0, name: str = "", until: float = math.inf
    ):
        self._terminal = terminal = sys.stderr.isatty()
        self._shown, self._gap = time.monotonic(), 0.1 if terminal else 10.0
        self._kinds: set[Hashable] = set()
        self._tokens, self._until = 0, until
        bar = "{percentage:3.0f}%|{bar}| " if terminal else ""
        super().__init__(
            total=total, initial=done, unit=unit, desc=name and f"{name}: ", leave=True,
            file=sys.stderr if terminal else io.StringIO(), dynamic_ncols=terminal,
            smoothing=0,  # The whole session's rate: inputs come in windows sorted by length.
            mininterval=0, miniters=1,  # Its clock goes with each item; ``display`` waits.
            bar_format="{desc}" + bar + "{n_fmt} of {total_fmt} {unit}{pace}",
        )  # fmt: skip

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the line is made of; tqdm's, and how fast it goes, where that is known."""
        found = super().format_dict
        done, elapsed = found["n"] - found["initial"], found["elapsed"]
        pace = ""
        if done > 0 and elapsed > 0:
            tokens = f", {self._tokens / elapsed:.0f} tokens/s" if self._tokens else ""
            more = (self.total - self.n) * elapsed / done
            more = min(more, self._until - time.monotonic())
            left = f", {_duration(more)} left" if more > 0 else ""
            pace = f", {_rate(done / elapsed, self.unit)}{tokens}{left}"
        return {**found, "pace": pace}

    def begin(self, what: str) -> None:
        """Shows at once what is under way; ``set_description`` waits for the next line."""
        self._shown = -self._gap
        self.set_description(what)

    def add(self, count: int = 1, *, kind: Hashable = None, tokens: int = 0) -> None:
        """Counts what was done.

        Args:
          kind: such as a batch's shape. What is the first of its kind compiles a program: neither
            it nor its time is counted in the rate, since what is left compiles nothing. None is
            no kind.
          tokens: shown as a rate too, if there are any.
        """
        if kind is not None and kind not in self._kinds:
            self._kinds.add(kind)
            self.skip(count)
            return
        self._tokens += tokens
        self.update(count)

    def skip(self, count: int = 0) -> None:
        """Counts what the rate is not to be judged by, and not the time since the last addition."""
        if self.disable:  # By the environment's TQDM_DISABLE.
            return
        self.initial += count
        self.n += count
        self.unpause()
        self.refresh()

    def clear(self, nolock: bool = False) -> None:
        """Clears the bar for a message; it comes back at once."""
        self._shown = -self._gap
        super().clear(nolock)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Shows it, unless it did so a moment ago; called by tqdm whenever something changes."""
        soon = self.n >= self.total or time.monotonic() - self._shown < self._gap
        if soon and not self.disable:  # tqdm disables a bar before it closes it.
            return
        self._shown = time.monotonic()
        if self._terminal:
            super().display(msg, pos)
        else:
            print(self, file=sys.stderr, flush=True)


def _rate(per_second: float, unit: str) -> str:
    """Such as "5.0 rows/s" or "12 rows/min": never seconds for one, nor a fraction of one."""
    if per_second >= 1:
        return f"{per_second:.{0 if per_second >= 100 else 1}f} {unit}/s"
    if per_second * 60 >= 1:
        return f"{per_second * 60:.0f} {unit}/min"
    return f"{per_second * 3600:.1f} {unit}/h"


def _duration(seconds: float) -> str:
    """Such as "12 s", "3 min 20 s" or "2 h 5 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
