from __future__ import annotations

import pytest

from specdec.data.text import read_pairs, write_pairs


def test_reads_pairs_in_order(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("a\tä\r\nb c\td\n".encode())
    assert read_pairs(path) == [("a", "ä"), ("b c", "d")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nno tab\n", r":2: expected 'input<TAB>target'.* found 1 field"),
        (b"a\tb\nc\td\te\n", r":2: .* found 3 field"),
        (b"a\tb\n\xff\tb\n", r":2: not UTF-8"),
        (b"a\tb\nc\td\re\tf\r", r":2: a carriage return inside the line"),
        ("a\tb\n".encode("utf-16"), r"a\.tsv is UTF-16; save it as UTF-8"),
        ("a\tb\n".encode("utf-16-le"), r":1: a NUL character"),
        (b"", r"is empty"),
    ],
)
def test_errors_name_the_line(tmp_path, content, message):
    path = tmp_path / "a.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_pairs(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_left_out(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffa\t\ufeffb\n\ufeffc\td\n".encode())
    assert read_pairs(path) == [("a", "\ufeffb"), ("\ufeffc", "d")]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No data file at .*none\.tsv"):
        read_pairs(tmp_path / "none.tsv")


def test_written_pairs_are_read_back(tmp_path):
    pairs = [("Eins", "one"), ("zwei,\u2028 drei", "two, three")]
    write_pairs(tmp_path / "pairs.tsv", pairs)
    assert read_pairs(tmp_path / "pairs.tsv") == pairs


@pytest.mark.parametrize("field", ["", "a\tb", "a\nb"])
def test_what_is_no_line_is_not_written(tmp_path, field):
    with pytest.raises(ValueError, match="Not a line"):
        write_pairs(tmp_path / "pairs.tsv", [("fine", "fine"), ("x", field)])
    assert not (tmp_path / "pairs.tsv").exists()
