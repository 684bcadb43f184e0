"""New texts made of old ones, passages of books, and several data sets as one."""

import numpy as np
import pytest

from specdec.data.text import read_pairs, write_pairs
from specdec.training import mixture as recipe
from specdec.training.mixture import PairsPart, RestorationPart, mixture
from specdec.training.passages import passages
from specdec.training.recombine import Recombination

# Each two meet in one pair of words only.
TEXTS = ["I saw the old house today .", "We like the old dog .", "Can the dog swim at night ?"]
MADE = {
    "I saw the old dog .",
    "We like the old house today .",
}


def test_a_beginning_and_an_end_meet_in_two_words():
    assert set(Recombination(2)(TEXTS)) == MADE


def test_what_is_known_is_not_made_again():
    assert Recombination(1)(TEXTS, known={"I saw the old dog ."}) == [
        "We like the old house today ."
    ]


def test_the_seed_fixes_the_choices():
    texts = [f"{i} b c {i}" for i in range(6)]
    first = Recombination(5, seed=1)(texts)
    assert first == Recombination(5, seed=1)(texts)
    assert first != Recombination(5, seed=2)(texts)


@pytest.mark.parametrize("texts", [[], ["one two"], TEXTS])
def test_too_few_texts_to_make_so_many(texts):
    with pytest.raises(ValueError, match=r"3 are wanted: lower the count"):
        Recombination(3)(texts)


def book(directory, sentences: int) -> None:
    lines = ["# A heading", "-------"]
    lines += [f'Mr. Number {i} came. He said: "I am {i}."' for i in range(sentences // 2)]
    (directory / "book.md").write_text("\n\n".join(lines), encoding="utf-8")


def read(directory, split):
    return (directory / f"{split}.txt").read_text(encoding="utf-8").splitlines()


def test_every_sentence_is_in_one_passage_of_one_split(tmp_path):
    book(tmp_path, 8000)
    passages(tmp_path, data=tmp_path, texts=["book.md"], lengths=(1, 1, 1))
    found = {split: read(tmp_path, split) for split in ("train", "validation", "test")}
    everything = " ".join(line for lines in found.values() for line in lines)
    assert "heading" not in everything
    assert "---" not in everything
    assert sorted(everything.split()) == sorted(
        word for i in range(4000) for word in f'Mr. Number {i} came. He said: "I am {i}."'.split()
    )
    shares = {split: sum(len(line.split()) for line in lines) for split, lines in found.items()}
    for split in ("validation", "test"):
        assert 0.02 < shares[split] / sum(shares.values()) < 0.03
    # Sentences a passage: 1, 2 and 3 are about as frequent, and a title ends none.
    ends = np.bincount([line.count("came.") + line.count('."') for line in found["train"]])
    assert len(ends) == 4
    assert ends[0] == 0
    assert ends[1:].min() > 0.7 * ends[1:].max()


BOOK = """# A Title

It was the best of times, it was the worst of times, it was the age. "Indeed," said he. Too
short. This sentence here is long enough to be kept by the rule of words!
"""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "split").mkdir()
    for name, size in (("train", 3), ("validation", 10)):
        write_pairs(
            tmp_path / "split" / f"{name}.tsv", [(f"in {i}", f"out {i}") for i in range(size)]
        )
    (tmp_path / "book.md").write_text(BOOK)
    return tmp_path


def test_parts_are_put_together(data, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "VALIDATION_EXAMPLES", 5)
    monkeypatch.setattr(recipe, "CORRUPT", 0.3)
    parts = [
        PairsPart("split: ", "split", repeat=2),
        RestorationPart("restore: ", texts=["book.md"]),
    ]
    mixture(tmp_path, data=data, parts=parts)
    train, validation = (read_pairs(tmp_path / f"{s}.tsv") for s in ("train", "validation"))
    assert train[:6] == [(f"split: in {i}", f"out {i}") for i in (0, 1, 2)] * 2
    assert validation == [(f"split: in {i}", f"out {i}") for i in (0, 2, 4, 6, 8)]
    restored = train[6:]
    assert [target for _, target in restored] == [
        "It was the best of times, it was the worst of times, it was the age.",
        "This sentence here is long enough to be kept by the rule of words!",
    ]
    for source, target in restored:
        words = source.removeprefix("restore: ").split()
        assert source.startswith("restore: ")
        assert set(words) <= set(target.split())
        assert words != target.split()
    # Some words were dropped, and not only replaced.
    assert sum(len(a.split()) - 1 for a, _ in restored) < sum(len(b.split()) for _, b in restored)
