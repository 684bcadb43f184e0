"""Tasks for models that continue a text, or generate from nothing."""

import pytest

from specdec.data.tasks import openings, unconditional
from specdec.data.text import BadRow


def test_rows_without_a_text():
    rows = unconditional(3).examples
    assert [row.input for row in rows] == [""] * 3
    assert len({row.origin for row in rows}) == 3
    with pytest.raises(ValueError, match="count must be"):
        unconditional(0)


def test_openings_and_their_rests(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"one two three four\nonly two\n\n\xff\na  b c\n")
    first, bad, last = openings("texts", path, 2).read()
    assert (first.input, first.reference) == ("one two", "three four")
    assert (last.input, last.reference) == ("a b", "c")
    assert last.origin == f"{path}:5"
    assert isinstance(bad, BadRow)
    with pytest.raises(ValueError, match="words must be"):
        openings("texts", path, 0)
