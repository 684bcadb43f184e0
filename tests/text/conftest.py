"""Vocabularies that tests of texts share."""

import pytest
import tokenizers
from small_vocabularies import LINES, train_pieces


@pytest.fixture(scope="session")
def spiece(tmp_path_factory):
    """A vocabulary of T5's kind of 54 pieces, none of them bytes."""
    return train_pieces(tmp_path_factory.mktemp("spiece"), LINES, 54)


@pytest.fixture(scope="session")
def bpe(tmp_path_factory):
    """vocab.json and merges.txt, as GPT-2's training makes them."""
    directory = tmp_path_factory.mktemp("bpe")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        LINES, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False
    )
    trained.save_model(str(directory))
    return directory
