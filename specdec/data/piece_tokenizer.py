"""Tokenizers of Marian and M2M100: SentencePiece's pieces, whose ids are in vocab.json."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import sentencepiece as spm

from specdec.checkpoints.byte_pieces import SPACE
from specdec.checkpoints.piece_ids import read_piece_ids
from specdec.checkpoints.tokenizer_checks import read_pieces
from specdec.data.added_tokens import AddedTokens
from specdec.data.vocabulary import CLEAN_UP, check_rows, spelling_of
from specdec.rules.spelling import Finish, Spelling


class PieceTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` with transformers' ids and texts.

    A text is cut by one SentencePiece model. Each piece has its id in vocab.json, or is unknown.
    Outputs are joined by the same model; where they have ids of their own, in target_vocab.json, by
    the other one. Marian's texts may begin with a language, such as ``>>fra<<``, which is one
    token. Punctuation is not normalized, which transformers does where sacremoses is installed.

    Args:
      path: vocab.json; see :mod:`specdec.checkpoints.piece_ids` for what is beside it.
      rows: of the model's embedding; None for any number.
      source_language: a text's, where there are languages; None for what the file tells.

    Raises:
      ValueError: a file is missing or damaged, there are more tokens than rows, or the language is
        none or missing.
    """

    def __init__(
        self, path: str | os.PathLike, rows: int | None = None, source_language: str | None = None
    ):
        self.path = Path(path)
        found = read_piece_ids(self.path)
        source, target = (
            spm.SentencePieceProcessor(model_proto=read_pieces(file).SerializeToString())
            for file in found.models
        )
        self._source = source
        apart = found.target_ids is not found.ids
        self._target = target if apart else source
        self._added = AddedTokens(found.added, found.options.get("split_special_tokens", False))
        self._ids, self._marian = found.ids, found.marian
        self._spelling = {i: piece for piece, i in found.target_ids.items()}
        self._special = found.special
        if apart:
            names = (found.added[i].content for i in found.special)
            self._special = {found.target_ids.get(name) for name in names}
        else:
            self._spelling |= {i: token.content for i, token in found.added.items()}
        cleans_up = found.options.get("clean_up_tokenization_spaces", False)
        self.finish = Finish(strips=True, replaces=CLEAN_UP if cleans_up else ())
        self._unknown = found.ids[found.named["unk_token"]]
        self.eos_id: int = found.ids[found.named["eos_token"]]
        self.languages, self.start_ids, self.end_ids = found.languages, (), (self.eos_id,)
        if self.languages is not None:
            self.start_ids = (self.languages.source_id(source_language),)
        self._size = max(self._spelling) + 1
        check_rows(self.path, self._size, rows)

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it."""
        ids = []
        for part in self._added.parts(text):
            ids += [part] if isinstance(part, int) else map(self._id, self._pieces(part))
        return [*self.start_ids, *ids, *self.end_ids] if add_eos else ids

    def _pieces(self, text: str) -> list[str]:
        code, end, rest = text.partition("<<")
        if self._marian and end and code.startswith(">>"):
            return [code + end, *self._source.encode(rest, out_type=str)]
        return self._source.encode(text, out_type=str)

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._unknown)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; special tokens and ids past the end have none."""
        return self.finish(self.joined(ids))

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished."""
        kept = (int(i) for i in ids if int(i) not in self._special)
        pieces = [self._spelling[i] for i in kept if i in self._spelling]
        return self._target.decode_pieces(pieces).replace(SPACE, " ")

    def spelling(self, size: int) -> Spelling:
        """How the first ``size`` token ids make a text."""
        letter = next(i for i in sorted(self._spelling) if self.joined([i]).strip())
        return spelling_of(size, self.joined, self._spelling.get, letter, self.finish)

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        return [*self.spelling(len(self)).pieces]
