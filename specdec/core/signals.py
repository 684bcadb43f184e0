"""Signals that ask a process to stop, noted until it comes to a point where it can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """A request to stop, as :func:`stop_request` noted it."""

    by: signal.Signals | None = None  # The signal that came last; None while there was none.

    @property
    def exit_code(self) -> int:
        """A shell's for a process that the signal ended: 143 for SIGTERM, 130 for SIGINT."""
        assert self.by is not None
        return 128 + self.by


@contextmanager
def stop_request(*signals: signal.Signals) -> Iterator[StopRequest]:
    """Notes these signals instead of ending the process; restores the old handlers at the end.

    A second Ctrl-C acts at once, without waiting. Outside the main thread, where handlers cannot be
    set, nothing is noted.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.getsignal(number) for number in signals}

    def note(number, _frame):
        request.by = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(number, previous[number])

    try:
        for number in signals:
            signal.signal(number, note)
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
