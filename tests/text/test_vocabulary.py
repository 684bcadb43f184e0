"""Vocabularies that are trained here: SentencePiece's and WordPiece's."""

from __future__ import annotations

import json
import shutil

import pytest

from specdec.runs.train import word_pieces
from specdec.text.base import EOS_ID, PAD_ID
from specdec.text.opening import open_tokenizer
from specdec.text.vocabulary import Vocabulary, train_vocabulary
from specdec.text.word_pieces import START_ID, train_word_pieces
from specdec.training.train import TextFiles

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


SENTENCES = ["The ants sang singing songs.", "An ant's song, été!", "Singers sing; ants don't."] * 5


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_word_pieces(SENTENCES, 45, tmp_path_factory.mktemp("pieces") / "tokenizer.json")


def test_special_tokens_have_the_ids_that_training_needs(pieces):
    assert len(pieces) == 45
    found = sorted(pieces.tokens().items(), key=lambda item: item[1])[:5]
    assert [text for text, _ in found] == ["[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]"]
    assert pieces.eos_id == 1
    assert pieces.encode("the", add_eos=True) == [START_ID, *pieces.encode("the"), 1]
    assert START_ID == 3


@pytest.mark.parametrize("model_type", ["t5", "bart", "gpt2"])
def test_ids_do_not_depend_on_the_model_beside(pieces, tmp_path, model_type):
    shutil.copy(pieces.path, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours = open_tokenizer(tmp_path / "tokenizer.json")
    for text in (*SENTENCES, "zebra's unseen 42"):
        ids = pieces.encode(text)
        assert ours.encode(text) == ids
        assert ours.encode(text, add_eos=True) == [START_ID, *ids, 1]
        assert ours.decode(ids) == pieces.decode(ids)


def test_the_recipe_trains_one(tmp_path):
    """On both sides of input<TAB>target lines."""
    (tmp_path / "train.tsv").write_text("".join(f"{line}\t{line}\n" for line in SENTENCES))
    word_pieces(str(tmp_path), files=TextFiles(str(tmp_path)), size=45)
    ours = open_tokenizer(tmp_path / "tokenizer.json")
    assert len(ours) == 45
    assert ours.decode(ours.encode(SENTENCES[0])) == "the ants sang singing songs."


def test_too_many_pieces_are_refused(tmp_path):
    with pytest.raises(ValueError, match="size = 5000 pieces cannot be made of this text: it has"):
        train_word_pieces(SENTENCES, 5000, tmp_path / "tokenizer.json")
    assert not (tmp_path / "tokenizer.json").exists()
