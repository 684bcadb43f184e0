"""New texts made of old ones."""

import pytest

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


def test_lengths_are_kept():
    assert Recombination(1, words=(3, 6))(TEXTS) == ["I saw the old dog ."]
    assert Recombination(1, words=(7, 9))(TEXTS) == ["We like the old house today ."]


def test_the_seed_fixes_the_choices():
    texts = [f"{i} b c {i}" for i in range(6)]
    first = Recombination(5, seed=1)(texts)
    assert first == Recombination(5, seed=1)(texts)
    assert first != Recombination(5, seed=2)(texts)


@pytest.mark.parametrize("texts", [[], ["one two"], TEXTS])
def test_too_few_texts_to_make_so_many(texts):
    with pytest.raises(ValueError, match=r"3 are wanted: lower the count"):
        Recombination(3)(texts)
