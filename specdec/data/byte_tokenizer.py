"""ByT5's tokens: the bytes of UTF-8, behind three special tokens and before sentinels."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specdec.data.vocabulary import EOS_ID, PAD_ID, UNK_ID, check_rows

FILE_NAME = "tokenizer_config.json"  # All that ByT5 has for files.
_OFFSET = 3  # Byte b is token b + 3.
_NUM_SENTINELS = 125


class ByteTokenizer:
    """A :class:`~specdec.data.vocabulary.Tokenizer` of bytes: transformers' ``ByT5Tokenizer``.

    Pad is 0, EOS 1 and unknown 2, byte b is b + 3, and sentinels follow from 259 on. In a text,
    ``</s>``, ``<pad>``, ``<unk>`` and ``<extra_id_0>`` ... are one token each.

    Source: Xue et al. 2022, "ByT5: Towards a token-free future with pre-trained byte-to-byte
    models".

    Args:
      path: tokenizer_config.json, which says what sentinels there are.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: the file is no JSON object, or there are more tokens than rows.
    """

    eos_id = EOS_ID
    start_ids = ()

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        try:
            config = dict(json.loads(self.path.read_text(encoding="utf-8")))
            added = {int(i): told for i, told in config.get("added_tokens_decoder", {}).items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read as a {FILE_NAME} ({error}).") from None
        if not added:
            names = config.get("additional_special_tokens") or [
                f"<extra_id_{i}>" for i in range(config.get("extra_ids", _NUM_SENTINELS))
            ]
            told = [config.get(name, text) for name, text in _NAMED.items()]
            added = dict(enumerate(told)) | dict(enumerate(names, start=_OFFSET + 256))
        self._texts = {token: _text(told) for token, told in added.items()}
        self._special = {text: token for token, text in self._texts.items()}
        self._size = max(_OFFSET + 255, *added) + 1
        check_rows(self.path, self._size, rows)
        self._pattern = re.compile(f"({'|'.join(map(_pattern, added.values()))})")

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``, without EOS unless asked for."""
        ids = []
        for i, part in enumerate(self._pattern.split(text)):
            if i % 2:
                ids.append(self._special[part.strip()])
            else:
                ids += [byte + _OFFSET for byte in part.encode("utf-8")]
        return [*ids, EOS_ID] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown.

        Bytes that are no UTF-8 are left out, as transformers does.
        """
        spelt = b""
        for token in map(int, ids):
            if token == EOS_ID:
                break
            if _OFFSET <= token < _OFFSET + 256:
                spelt += bytes([token - _OFFSET])
            elif token != PAD_ID:
                spelt += self._texts.get(token, self._texts[UNK_ID]).encode("utf-8")
        return spelt.decode("utf-8", errors="ignore")


# Of the special tokens in their order; unless told otherwise they take the spaces around them in.
_NAMED = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def _text(told: str | Mapping[str, Any]) -> str:
    return told if isinstance(told, str) else told["content"]


def _pattern(told: str | Mapping[str, Any]) -> str:
    """What a special token is in a text."""
    text = _text(told)
    strips = dict.fromkeys(("lstrip", "rstrip"), text in _NAMED.values())
    if not isinstance(told, str):
        strips = told
    left, right = (r"\s*" if strips.get(side) else "" for side in ("lstrip", "rstrip"))
    return left + re.escape(text) + right
