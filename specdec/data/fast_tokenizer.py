"""``tokenizer.json``, in which transformers 5 saves every tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as Backend

from specdec.data.vocabulary import EOS_ID, PAD_ID, UNK_ID, Tokenizer, Vocabulary, check_rows

FILE_NAME = "tokenizer.json"


class FastTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` that reads T5's form of ``tokenizer.json``.

    Args:
      path: the file.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: the file cannot be read, is not of T5's form (pad 0, EOS 1, unknown 2), or has
        more tokens than there are rows.
    """

    eos_id = EOS_ID

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        try:
            self._model = Backend.from_file(str(path))
        except Exception as error:  # The library raises this type itself.
            raise ValueError(f"{path} cannot be read as a tokenizer.json ({error}).") from None
        ids = tuple(map(self._model.token_to_id, ("<pad>", "</s>", "<unk>")))
        if ids != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"{path} has (pad, eos, unk) = {ids}; T5 wants {(PAD_ID, EOS_ID, UNK_ID)}."
            )
        # What the tokenizer would cut or pad, it would without a word.
        self._model.no_truncation()
        self._model.no_padding()
        added = self._model.get_added_tokens_decoder()
        self._special = {token for token, text in added.items() if text.special}
        check_rows(self.path, len(self), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``, without EOS unless asked for."""
        ids = self._model.encode(text, add_special_tokens=False).ids
        return [*ids, EOS_ID] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown."""
        parts: list[list[int]] = [[]]
        for token in map(int, ids):
            if token == EOS_ID:
                break
            if token in self._special and token not in (PAD_ID, UNK_ID):
                parts += [[token], []]
            elif token != PAD_ID:
                parts[-1].append(token if token < len(self) else UNK_ID)
        texts = (self._model.decode(part, skip_special_tokens=False) for part in parts if part)
        return " ".join(filter(None, texts))


def open_tokenizer(path: str | os.PathLike, rows: int | None = None) -> Tokenizer:
    """A checkpoint's tokenizer: a ``tokenizer.json``, or a SentencePiece model of any other name.

    Raises:
      ValueError: see :class:`FastTokenizer` and :class:`~specdec.data.vocabulary.Vocabulary`.
    """
    return (FastTokenizer if Path(path).name == FILE_NAME else Vocabulary)(path, rows)
