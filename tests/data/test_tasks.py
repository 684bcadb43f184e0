"""Tasks from files of pairs and of texts, and what is no row."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest
import sentencepiece

from specdec.data.tasks import Example, model_inputs, openings, pairs_file, unconditional
from specdec.data.text import BadRow, read_pairs, write_pairs
from specdec.text.vocabulary import Vocabulary


@pytest.fixture
def seven_pairs(tmp_path):
    write_pairs(tmp_path / "test.tsv", [(f"in {i}.", f"out {i}.") for i in range(1, 8)])
    return tmp_path


def test_pairs_are_examples(seven_pairs):
    task = pairs_file("numbers", seven_pairs, "test")
    assert task.name == "numbers/test"
    assert [e.input for e in task.examples] == [f"in {i}." for i in range(1, 8)]
    assert (task.examples[2].reference, task.examples[2].origin) == (
        "out 3.", f"{seven_pairs / 'test.tsv'}:3",
    )  # fmt: skip


def test_pairs_are_joined_from_all_over_the_file(seven_pairs):
    task = pairs_file("numbers", seven_pairs, "test", joined=3)
    assert task.name == "numbers/test by 3"
    assert [e.input for e in task.examples] == ["in 1. in 3. in 5.", "in 2. in 4. in 6."]
    assert [e.reference for e in task.examples] == ["out 1. out 3. out 5.", "out 2. out 4. out 6."]
    assert task.examples[1].origin.endswith("test.tsv:2 and every 2 on")


def test_a_column_of_texts_to_follow(tmp_path):
    lines = ["in\tout\ttext", "in\t\ta\t\tb", "in\tout\t", "in\tout", "\tout\ttext"]
    (tmp_path / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    task = pairs_file("edits", tmp_path, "test", given=True)
    rows = list(task.read())
    assert [row.given for row in rows[:3]] == [("text",), ("a", "b"), ()]
    assert [row.reference for row in rows[:3]] == ["out", None, "out"]
    assert all(isinstance(row, BadRow) for row in rows[3:])
    assert rows[3].reason.endswith("the input non-empty; found 2 field(s).")
    with pytest.raises(ValueError, match="joined must be 1, got 2"):
        pairs_file("edits", tmp_path, "test", joined=2, given=True)


@pytest.mark.parametrize("joined", [0, -1, 8])
def test_pairs_cannot_be_joined_so(seven_pairs, joined):
    with pytest.raises(ValueError, match=r"joined must be in 1\.\.7"):
        pairs_file("numbers", seven_pairs, "test", joined=joined)


BUNDLED = Path(str(importlib.resources.files("specdec"))) / "bundled" / "quickstart" / "target"


def test_a_tasks_ids_may_cut_words_otherwise_than_the_vocabulary_would():
    """Libraries differ in which of equally likely pieces they take; the text must be the same."""
    vocabulary = Vocabulary(BUNDLED)
    pieces = sentencepiece.SentencePieceProcessor(str(vocabulary.path))
    whole = vocabulary.encode("no way")
    other = (*map(pieces.piece_to_id, ("▁", "n", "o", "▁", "w", "a", "y")), 1)
    assert list(other[:-1]) != whole
    assert vocabulary.decode(other) == "no way"
    example = Example("no way", None, "a file:1", other)
    assert model_inputs([example], vocabulary) == [other]
    cut = Example("no way", None, "a file:1", (*whole[:1], 1))
    assert model_inputs([cut], vocabulary) == [cut.tokens]
    wrong = Example("no way", None, "a file:1", (*vocabulary.encode("no cat"), 1))
    with pytest.raises(ValueError, match="a file:1: the task's vocabulary is not the model's"):
        model_inputs([wrong], vocabulary)


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


def test_written_pairs_are_read_back(tmp_path):
    pairs = [("Eins", "one"), ("zwei,\u2028 drei", "two, three")]
    write_pairs(tmp_path / "pairs.tsv", pairs)
    assert read_pairs(tmp_path / "pairs.tsv") == pairs


@pytest.mark.parametrize("field", ["", "a\tb", "a\nb"])
def test_what_is_no_line_is_not_written(tmp_path, field):
    with pytest.raises(ValueError, match="Not a line"):
        write_pairs(tmp_path / "pairs.tsv", [("fine", "fine"), ("x", field)])
    assert not (tmp_path / "pairs.tsv").exists()
