"""Tokenizers of Hugging Face checkpoints, on the ``tokenizers`` library."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from specdec.checkpoints.tokenizer_backends import open_backend
from specdec.checkpoints.vocabulary_files import MERGES, TOKENIZER, TOKENIZER_CONFIG
from specdec.data.byte_tokenizer import ByteTokenizer
from specdec.data.vocabulary import (
    UNSETTLED,
    Tokenizer,
    Vocabulary,
    check_rows,
    cleaned_up,
    pieces_of,
)

_ENDS = ("<|endoftext|>", "</s>", "[SEP]")  # GPT-2's, T5's and RoBERTa's, BERT's.
_PADS = ("<pad>", "[PAD]")


class FastTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` with transformers' ids and texts.

    EOS is the tokenizer's ``eos_token``; where there is none, T5's ``</s>``, GPT-2's
    ``<|endoftext|>`` or BERT's ``[SEP]``. What the tokenizer puts around a text, such as RoBERTa's
    ``<s>``, an encoder reads too.

    Args:
      path: tokenizer.json, spiece.model, vocab.json or encoder.json. What is read beside them is
        in :mod:`specdec.checkpoints.vocabulary_files`.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: a file cannot be read, has no EOS, or has more tokens than there are rows.
    """

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        opened = open_backend(self.path, rows)
        self._model, self._cleans_up = opened.backend, opened.cleans_up
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
        self.start_ids = tuple(text[: text.index(first[0])] if first else around)
        self._ends_texts = around[-1:] == [end]
        self._no_text = {pad, end, *around}
        last = max(self._model.get_vocab().values())
        check_rows(self.path, max(last + 1, len(self)), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it, EOS last."""
        ids = self._model.encode(text, add_special_tokens=add_eos).ids
        return [*ids, self.eos_id] if add_eos and not self._ends_texts else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; pads, EOS, what stands around texts and unknown ids have none."""
        kept = [token for token in map(int, ids) if token not in self._no_text]
        text = self._model.decode(kept, skip_special_tokens=False)
        return cleaned_up(text) if self._cleans_up else text

    @property
    def unsettled(self) -> int:
        """Characters at the end of a text that further tokens may change."""
        return UNSETTLED if self._cleans_up else 0

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        letter = self._model.encode("a", add_special_tokens=False).ids[-1]
        return pieces_of(len(self), self.decode, self._model.id_to_token, letter)


def open_tokenizer(
    path: str | os.PathLike, rows: int | None = None, *, of_t5x: bool = False
) -> Tokenizer:
    """A checkpoint's tokenizer, by its file's name; any other than these is a SentencePiece model.

    Args:
      of_t5x: a SentencePiece model is read as T5X's own library, seqio, does it, instead of as
        transformers does.

    Raises:
      ValueError: see :class:`FastTokenizer`, :class:`~specdec.data.vocabulary.Vocabulary` and
        :class:`~specdec.data.byte_tokenizer.ByteTokenizer`.
    """
    name = Path(path).name
    if name == TOKENIZER_CONFIG:
        return ByteTokenizer(path, rows)
    pieces = name not in (TOKENIZER, *MERGES)
    return (Vocabulary if pieces and of_t5x else FastTokenizer)(path, rows)
