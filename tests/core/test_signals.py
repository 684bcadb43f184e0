import os
import signal
import threading

import pytest

from specdec.core.signals import stop_request


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_noted(number, code):
    before = signal.getsignal(number)
    with stop_request(signal.SIGTERM, signal.SIGINT) as stop:
        assert stop.by is None
        os.kill(os.getpid(), number)
        assert stop.by == number
        assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_acts_at_once():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's jobs ignore it.
    with stop_request(signal.SIGINT) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.by == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_sigterm_is_noted_too():
    with stop_request(signal.SIGTERM) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.by == signal.SIGTERM


def test_outside_the_main_thread_nothing_is_noted():
    found = []

    def run():
        with stop_request(signal.SIGTERM) as stop:
            found.append((stop.by, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(None, signal.SIG_DFL)]
