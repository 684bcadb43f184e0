from __future__ import annotations

import pytest

from specdec.text.base import EOS_ID, PAD_ID
from specdec.text.vocabulary import Vocabulary, train_vocabulary

LINES = ["Ein Hund bellt.", "A dog barks.", "Zwei Hunde bellen laut.", "Two dogs bark."] * 20


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return train_vocabulary(LINES, 285, tmp_path_factory.mktemp("vocabulary") / "spiece.model")


@pytest.mark.parametrize("text", ["A dog barks.", "Ein Hund", "Ünlikely 日本 ≠ €", "x" * 50, ""])
def test_round_trip_without_unknowns(vocabulary, text):
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert not {PAD_ID, EOS_ID, 2} & set(ids)


def test_decode_skips_pads_and_eos_and_survives_padding_rows(vocabulary):
    dog = vocabulary.encode("dog")
    assert vocabulary.decode([PAD_ID, *dog, PAD_ID, EOS_ID]) == "dog"
    assert vocabulary.decode([*dog, len(vocabulary)]).startswith("dog")


def test_errors_are_clear(tmp_path):
    with pytest.raises(FileNotFoundError, match="No vocabulary at"):
        Vocabulary(tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        Vocabulary(tmp_path / "bad.model")
    with pytest.raises(ValueError, match="size = 9000 pieces cannot be made of this text: V"):
        train_vocabulary(LINES, 9000, tmp_path / "big.model")
    assert not (tmp_path / "big.model").exists()
