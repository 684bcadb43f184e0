"""Tokenizers of Hugging Face checkpoints, on the ``tokenizers`` library."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from specdec.checkpoints.tokenizer_backends import open_backend
from specdec.checkpoints.vocabulary_files import (
    MERGES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    has_piece_ids,
)
from specdec.data.byte_tokenizer import ByteTokenizer
from specdec.data.piece_tokenizer import PieceTokenizer
from specdec.data.vocabulary import (
    CLEAN_UP,
    Tokenizer,
    Vocabulary,
    check_rows,
    spelling_of,
)
from specdec.rules.spelling import Finish, Spelling

_ENDS = ("<|endoftext|>", "</s>", "[SEP]")  # GPT-2's, T5's and RoBERTa's, BERT's.
_PADS = ("<pad>", "[PAD]")


class FastTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` with transformers' ids and texts.

    EOS is the tokenizer's ``eos_token``; where there is none, T5's ``</s>``, GPT-2's
    ``<|endoftext|>`` or BERT's ``[SEP]``. An encoder reads what the tokenizer puts around a text,
    such as RoBERTa's ``<s>`` or its language; T5's and what is trained here EOS in any case.

    Args:
      path: tokenizer.json, spiece.model, vocab.json or encoder.json. What is read beside them is
        in :mod:`specdec.checkpoints.vocabulary_files`.
      rows: of the model's embedding; None for any number.
      source_language: a text's, where there are languages; None for what the file tells.

    Raises:
      ValueError: a file cannot be read, has no EOS, or has more tokens than there are rows; or the
        language is none or missing.
    """

    def __init__(
        self, path: str | os.PathLike, rows: int | None = None, source_language: str | None = None
    ):
        self.path = Path(path)
        opened = open_backend(self.path, rows)
        self._model = opened.backend
        self.finish = Finish(replaces=CLEAN_UP if opened.cleans_up else ())
        end, pad = (
            next(
                (token for token in map(self._model.token_to_id, names) if token is not None), None
            )
            for names in (
                (opened.named.get("eos_token", ""), *_ENDS),
                (opened.named.get("pad_token", ""), *_PADS),
            )
        )
        if end is None:
            raise ValueError(
                f"{path} has no token that ends a text: it needs one of {', '.join(_ENDS)}, or "
                "eos_token in tokenizer_config.json beside it."
            )
        self.eos_id: int = end
        around = self._model.encode("").ids
        first = self._model.encode("a", add_special_tokens=False).ids[:1]
        text = self._model.encode("a").ids
        before = text.index(first[0]) if first else len(around)
        self.start_ids, self.end_ids = tuple(around[:before]), tuple(around[before:])
        self.languages = opened.languages
        if self.languages is not None:
            language = (self.languages.source_id(source_language),)
            if self.languages.place == "before":
                self.start_ids += language
            else:
                self.end_ids += language
        if opened.as_t5:
            self.end_ids = self.end_ids if self.end_ids[-1:] == (end,) else (*self.end_ids, end)
            self._no_text = {pad, end, *around}
        else:
            added = self._model.get_added_tokens_decoder().items()
            self._no_text = {i for i, token in added if token.special}
        last = max(self._model.get_vocab().values())
        check_rows(self.path, max(last + 1, len(self)), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it."""
        ids = self._model.encode(text, add_special_tokens=False).ids
        return [*self.start_ids, *ids, *self.end_ids] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; pads, EOS, what stands around texts and unknown ids have none.

        Nor have other special tokens, but those of T5 and GPT-2.
        """
        return self.finish(self.joined(ids))

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished."""
        kept = [token for token in map(int, ids) if token not in self._no_text]
        return self._model.decode(kept, skip_special_tokens=False)

    def spelling(self, size: int) -> Spelling:
        """How the first ``size`` token ids make a text."""
        letter = self._model.encode("a", add_special_tokens=False).ids[-1]
        return spelling_of(size, self.joined, self._model.id_to_token, letter, self.finish)

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        return [*self.spelling(len(self)).pieces]


def open_tokenizer(
    path: str | os.PathLike, rows: int | None = None, *, of_t5x: bool = False,
    source_language: str | None = None,
) -> Tokenizer:  # fmt: skip
    """A checkpoint's tokenizer, by its file's name; any other than these is a SentencePiece model.

    Args:
      of_t5x: a SentencePiece model is read as T5X's own library, seqio, does it, instead of as
        transformers does.
      source_language: of the texts, where the vocabulary has languages; None for what
        tokenizer_config.json tells.

    Raises:
      ValueError: see :class:`FastTokenizer`, :class:`~specdec.data.vocabulary.Vocabulary`,
        :class:`~specdec.data.piece_tokenizer.PieceTokenizer` and
        :class:`~specdec.data.byte_tokenizer.ByteTokenizer`; or a language is given, but the
        vocabulary has none.
    """
    name = Path(path).name
    if has_piece_ids(Path(path)):
        found: Tokenizer = PieceTokenizer(path, rows, source_language)
    elif name == TOKENIZER_CONFIG:
        found = ByteTokenizer(path, rows)
    elif of_t5x and name not in (TOKENIZER, *MERGES):
        found = Vocabulary(path, rows)
    else:
        found = FastTokenizer(path, rows, source_language)
    check_languages(found, source_language=source_language)
    return found


def check_languages(tokenizer: Tokenizer | None, **given: str | None) -> None:
    """Raises ValueError for languages that are given to a vocabulary without any."""
    if tokenizer is None or tokenizer.languages is None:
        for option, code in given.items():
            if code is not None:
                raise ValueError(
                    f"{option} = {code!r}, but the vocabulary has no languages: leave it out. "
                    "Where a model is told the language in the text, as T5 is by a sentence and "
                    "Marian by >>fra<< before it, put it there."
                )
