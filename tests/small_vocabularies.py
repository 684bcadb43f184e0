"""Small vocabularies that tests train."""

from pathlib import Path

import sentencepiece


def train_pieces(directory: Path, lines: list[str], pieces: int) -> Path:
    """A ``spiece.model`` of T5's kind, without pieces of bytes; returns its path."""
    with open(directory / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=pieces,
            model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
        )  # fmt: skip
    return directory / "spiece.model"
