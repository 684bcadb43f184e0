"""What is shown while one waits, in a log file and on a terminal."""

import io
import os
import subprocess
import sys

import pytest
import tqdm.std

from specdec.core import progress
from specdec.core.progress import Progress, say


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes when it is told to."""

    class Clock:
        now = 100.0

        def wait(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(tqdm.std, "time", lambda: clock.now)
    return clock


def test_a_line_every_ten_seconds_and_the_last_one(clock, capsys):
    with Progress(1000, "rows", done=600, name="texts") as shown:
        clock.wait(5)
        shown.add(50, tokens=400)
        assert capsys.readouterr().err == ""
        clock.wait(15)
        shown.add(50, tokens=400)
        expected = "texts: 700 of 1000 rows, 5.0 rows/s, 40 tokens/s, 1 min 0 s left\n"
        assert capsys.readouterr().err == expected
        clock.wait(1)
        shown.add(300, tokens=2000)
        assert capsys.readouterr().err == ""
    expected = "texts: 1000 of 1000 rows, 19.0 rows/s, 133 tokens/s\n"
    assert capsys.readouterr().err == expected


def test_what_compiles_is_not_counted_in_the_rate(clock, capsys):
    with Progress(100, "rows") as shown:
        for seconds, kind in ((60, "short"), (2, "short"), (90, "long"), (2, "short"), (4, "long")):
            clock.wait(seconds)
            shown.add(10, kind=kind, tokens=40)
    last = "50 of 100 rows, 3.8 rows/s, 15 tokens/s, 13 s left\n"
    assert capsys.readouterr().err.endswith(last)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.005, "200 rows/s, 0 s left"), (0.5, "2.0 rows/s, 5 s left"),
        (2.07, "29 rows/min, 21 s left"), (59, "1 rows/min, 9 min 50 s left"),
        (1000, "3.6 rows/h, 2 h 46 min left"),
    ],
)  # fmt: skip
def test_rates_and_times_as_people_read_them(clock, capsys, seconds, expected):
    with Progress(11, "rows") as shown:
        clock.wait(seconds)
        shown.add()
        shown.begin("reading")
    assert f"reading: 1 of 11 rows, {expected}\n" in capsys.readouterr().err


def test_what_ends_in_any_case_has_no_more_time_left(clock, capsys):
    with Progress(11, "rows", until=clock.now + 30) as shown:
        clock.wait(20)
        shown.add()
    assert "1 of 11 rows, 3 rows/min, 10 s left\n" in capsys.readouterr().err


def test_what_is_under_way_is_named_at_once(clock, capsys):
    with Progress(3, "pieces") as shown:
        shown.begin("alpha")
        assert capsys.readouterr().err == "alpha: 0 of 3 pieces\n", "no rate is known yet"
        shown.skip(1)  # It was on disk.
        clock.wait(300)
        shown.add()
        assert "2 of 3 pieces, 12.0 pieces/h, 5 min 0 s left\n" in capsys.readouterr().err
        say("a line")
        assert capsys.readouterr().err == "a line\n"


def test_a_terminal_has_a_bar_and_lines_above_it(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(4, "rows") as shown:
        clock.wait(1)
        shown.add(2)
        assert "\r 50%|#####     | 2 of 4 rows" in terminal.getvalue()
        say("a line")
        cleared, _, rest = terminal.getvalue().partition("a line\n")
        assert cleared.endswith(" \r")
        assert "\r 50%|#####     | 2 of 4 rows" in rest


def test_bars_that_are_switched_off():
    code = """
from specdec.core.progress import Progress, say
with Progress(4, "rows") as shown:
    shown.begin("something")
    shown.add(2, kind="short", tokens=3)
    shown.add(2, kind="short", tokens=3)
say("a line")
"""
    env = os.environ | {"TQDM_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "a line\n"), done.stderr
