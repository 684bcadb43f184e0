"""What steers a terminal, or turns the order of its text, is printed as what it is."""

import pytest

from specdec.core.progress import say, visible
from specdec.runs.command_line import report_error

HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\u2066e\ufefff\u2028g\x7f\x00\udcff"
SAFE = "a\u241b[2Jb<U+009B>31mc<U+202E>d<U+2066>e<U+FEFF>f<U+2028>g\u2421\u2400<U+DCFF>"
NEEDED = "👩\u200d👧 می\u200cخواهم \u0600 e\u0301 🏳️"  # Joiners, a sign with a shape, marks.


def test_all_that_steers_is_seen():
    assert visible(HOSTILE) == SAFE
    assert visible(NEEDED) == NEEDED
    assert visible("a\n\tb") == "a\u240a\u2409b"
    assert visible("a\n\tb\r", "\n\t") == "a\n\tb\u240d"


@pytest.mark.parametrize("result", [False, True])
def test_messages_and_errors(capsys, result):
    say(f"{HOSTILE}\n{NEEDED}", result=result)
    report_error(ValueError(HOSTILE))
    out, err = capsys.readouterr()
    assert (out if result else err).startswith(f"{SAFE}\n{NEEDED}\n")
    assert "\x9b" not in err
    assert "<U+202E>" in err
