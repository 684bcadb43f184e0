"""Vocabularies by their files: which library reads which, and what differs between two."""

from __future__ import annotations

import os
from pathlib import Path

from specdec.core.checkpoint_files import read_json
from specdec.text.base import Tokenizer, check_rows
from specdec.text.files import FILES, MERGES, TOKENIZER, TOKENIZER_CONFIG, VOCABULARY
from specdec.text.hugging_face import HuggingFaceTokenizer, opened, tokens_of
from specdec.text.vocabulary import Vocabulary, read_pieces


def open_tokenizer(
    path: str | os.PathLike, rows: int | None = None, *, of_t5x: bool = False,
    source_language: str | None = None,
) -> Tokenizer:  # fmt: skip
    """A checkpoint's tokenizer; a file of any other name than is known is a SentencePiece model.

    Args:
      of_t5x: a SentencePiece model is read as T5X's own library, seqio, does it, instead of as
        transformers does.
      source_language: of the texts, where the vocabulary has languages; None for the one
        that tokenizer_config.json names.

    Raises:
      ValueError: see :class:`~specdec.text.hugging_face.HuggingFaceTokenizer` and
        :class:`~specdec.text.vocabulary.Vocabulary`.
    """
    path = Path(path)
    if of_t5x and path.name not in (TOKENIZER, *MERGES):
        found: Tokenizer = Vocabulary(path, rows)
    elif _is_pieces_alone(path):
        found = Vocabulary(path)
        check_rows(path, len(found), rows)
    else:
        found = HuggingFaceTokenizer(path, rows, source_language)
    return found


def _is_pieces_alone(path: Path) -> bool:
    """Whether a SentencePiece model is one that was trained here, without sentinels.

    It spells unknown characters in bytes, and no file adds a token.
    """
    config = path.with_name(TOKENIZER_CONFIG)
    settings = read_json(config) if config.is_file() else {"extra_ids": 0}
    there = {name for name in FILES if path.with_name(name).is_file()} - {TOKENIZER_CONFIG}
    if there != {VOCABULARY} or path.name != VOCABULARY or settings.get("extra_ids") != 0:
        return False
    plain = settings.keys() <= {"tokenizer_class", "extra_ids"}
    named = settings.get("tokenizer_class", "T5Tokenizer") == "T5Tokenizer"
    return plain and named and read_pieces(path).trainer_spec.byte_fallback


def difference(ours: Path, theirs: Path) -> str | None:
    """Name a difference between the tokens of two vocabularies' files; None if there is none.

    Two are the same if each token has the same id in both. Sentinels are not compared where one
    has none: that of a SentencePiece model alone are as many as a model has rows for.

    Raises:
      ValueError: a file cannot be read.
    """
    if _content(ours) == _content(theirs):
        return None
    first, second = (_tokens(path) for path in (ours, theirs))
    both = all(any(text.startswith("<extra_id_") for text in each) for each in (first, second))
    for text in sorted({text for text, _ in first.items() ^ second.items()}):
        if both or not text.startswith("<extra_id_"):
            ids = (found.get(text, "not there") for found in (first, second))
            return f"token {text!r} is {next(ids)} in the former and {next(ids)} in the latter"
    return None


def _tokens(path: Path) -> dict[str, int]:
    if _is_pieces_alone(path):
        return Vocabulary(path).tokens()
    return tokens_of(opened(path))


def _content(path: Path) -> dict[str, bytes]:
    files = {path.name: path} | {name: path.with_name(name) for name in FILES}
    return {name: file.read_bytes() for name, file in files.items() if file.is_file()}
