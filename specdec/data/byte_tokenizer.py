"""ByT5's tokens: the bytes of UTF-8, behind three special tokens and before sentinels."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from specdec.checkpoints.vocabulary_tokens import BYTE_OFFSET, byte_tokens
from specdec.data.added_tokens import AddedTokens
from specdec.data.vocabulary import CLEAN_UP, check_rows
from specdec.rules.spelling import Finish, Spelling

_BYTES = range(BYTE_OFFSET, BYTE_OFFSET + 256)
_UNK_ID = 2


class ByteTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` of bytes: transformers' ``ByT5Tokenizer``.

    Pad is 0, EOS 1 and unknown 2, byte b is b + 3, and sentinels follow from 259 on. In a text,
    ``</s>``, ``<pad>``, ``<unk>``, ``<extra_id_0>`` ... and what was added are one token each.

    Source: Xue et al. 2022, "ByT5: Towards a token-free future with pre-trained byte-to-byte
    models".

    Args:
      path: tokenizer_config.json, which says what sentinels and added tokens there are.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: a file is damaged, or there are more tokens than rows.
    """

    start_ids, languages = (), None

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        self._added, settings = byte_tokens(self.path)
        self._cut = AddedTokens(self._added, settings.options.get("split_special_tokens", False))
        self._ids = self._cut.ids
        end = settings.named.get("eos_token")
        if end is None:
            raise ValueError(f"{path}: eos_token is null; it must name the token that ends a text.")
        self.eos_id: int = self._ids[str(end)]
        pad = settings.named.get("pad_token")
        self._no_text = {self.eos_id, self._ids.get(str(pad))}
        cleans_up = settings.options.get("clean_up_tokenization_spaces", False)
        self.finish = Finish(replaces=CLEAN_UP if cleans_up else ())
        self._size = max(_BYTES.stop - 1, *self._added) + 1
        check_rows(self.path, self._size, rows)
        self.end_ids = (self.eos_id,)

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` it ends with one EOS."""
        ids = []
        for part in self._cut.parts(text):
            if isinstance(part, int):
                ids.append(part)
            else:  # A byte may be an added token itself.
                ids += [self._ids.get(chr(b), b + BYTE_OFFSET) for b in part.encode("utf-8")]
        return [*ids, self.eos_id] if add_eos and ids[-1:] != [self.eos_id] else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; pads and EOS have none, and ids past the end are unknown.

        Bytes that are no UTF-8 are left out, as transformers does.
        """
        return self.finish(self.joined(ids))

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished."""
        spelt = b"".join(self._bytes(token) for token in map(int, ids))
        return spelt.decode("utf-8", errors="ignore")

    def _bytes(self, token: int) -> bytes:
        if token in self._no_text:
            return b""
        if token in _BYTES and token not in self._added:
            return bytes([token - BYTE_OFFSET])
        return self._added.get(token, self._added[_UNK_ID]).content.encode("utf-8")

    def spelling(self, size: int) -> Spelling:
        """How the first ``size`` token ids make a text."""
        return Spelling.of_bytes(
            [self._bytes(token) for token in range(size)], "dropped", finish=self.finish
        )

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        return [self._bytes(token) for token in range(len(self))]
