"""WordPiece vocabularies that are trained here."""

import jax
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specdec.checkpoints import save_huggingface
from specdec.data.inputs import text_ids
from specdec.models.gpt.config import GPTConfig
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import init_params
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


def test_texts_come_back_uncased(vocabulary):
    ids = vocabulary.encode("The Ants sang ÉTÉ.", add_eos=True)
    assert ids[-1] == 1
    assert vocabulary.decode(ids) == "the ants sang ete."
    pieces = [vocabulary._model.id_to_token(i) for i in ids]
    assert any(piece.startswith("##") for piece in pieces)


def test_transformers_reads_the_same_file(vocabulary):
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(vocabulary.path), unk_token="[UNK]")
    for text in (*LINES, "zebra's unseen 42"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == vocabulary.encode(text)
    again = open_tokenizer(vocabulary.path)
    assert again.encode(LINES[0]) == vocabulary.encode(LINES[0])


def test_transformers_opens_what_is_saved_beside_a_model(vocabulary, tmp_path):
    model = GPTConfig(
        vocab_size=48, max_positions=8, d_model=4, num_layers=1, num_heads=1, d_ff=4, pad_id=0,
        eos_id=1, start_id=START_ID,
    )  # fmt: skip
    params = init_params(model, jax.random.key(0))
    save_huggingface(tmp_path / "saved", model, params, vocabulary.path)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (1, 0, 2)
    assert theirs(LINES[1], add_special_tokens=False)["input_ids"] == vocabulary.encode(LINES[1])
    assert len(theirs) == len(vocabulary)


def test_a_prompt_begins_as_the_texts_of_training(vocabulary):
    model = TransformerModel(
        GPTConfig(
            vocab_size=48, max_positions=32, d_model=4, num_layers=1, num_heads=1, d_ff=4,
            eos_id=1, start_id=START_ID,
        )
    )  # fmt: skip
    assert vocabulary.start_ids == (START_ID,)
    for text in ("", "the ants"):
        ids = text_ids(text, "text", vocabulary, model, 32)
        assert ids.tolist() == [START_ID, *vocabulary.encode(text)]


def test_too_many_pieces_are_refused(tmp_path):
    with pytest.raises(ValueError, match="size = 5000 pieces cannot be made of this text: it has"):
        train_word_pieces(LINES, 5000, tmp_path / "tokenizer.json")
    assert not (tmp_path / "tokenizer.json").exists()
