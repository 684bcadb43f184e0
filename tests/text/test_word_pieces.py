"""WordPiece vocabularies that are trained here."""

import pytest
from transformers import PreTrainedTokenizerFast

from specdec.runs.train import word_pieces
from specdec.text.opening import open_tokenizer
from specdec.text.word_pieces import START_ID, train_word_pieces
from specdec.training.train import TextFiles

LINES = ["The ants sang singing songs.", "An ant's song, été!", "Singers sing; ants don't."] * 5


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return train_word_pieces(LINES, 45, tmp_path_factory.mktemp("pieces") / "tokenizer.json")


def test_special_tokens_have_the_ids_that_training_needs(vocabulary):
    assert len(vocabulary) == 45
    backend = vocabulary._model
    found = [backend.id_to_token(i) for i in range(5)]
    assert found == ["[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]"]
    assert vocabulary.eos_id == 1
    assert START_ID == 3


def test_the_recipe_trains_one(tmp_path):
    """On both sides of input<TAB>target lines."""
    (tmp_path / "train.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES))
    word_pieces(str(tmp_path), files=TextFiles(str(tmp_path)), size=45)
    ours = open_tokenizer(tmp_path / "tokenizer.json")
    assert len(ours) == 45
    assert ours.decode(ours.encode(LINES[0])) == "the ants sang singing songs."


def test_transformers_reads_the_same_file(vocabulary):
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(vocabulary.path), unk_token="[UNK]")
    for text in (*LINES, "zebra's unseen 42"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == vocabulary.encode(text)
    again = open_tokenizer(vocabulary.path)
    assert again.encode(LINES[0]) == vocabulary.encode(LINES[0])


def test_too_many_pieces_are_refused(tmp_path):
    with pytest.raises(ValueError, match="size = 5000 pieces cannot be made of this text: it has"):
        train_word_pieces(LINES, 5000, tmp_path / "tokenizer.json")
    assert not (tmp_path / "tokenizer.json").exists()
