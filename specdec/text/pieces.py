"""Spelling of tokens, found out from the texts of few tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from specdec.rules.spelling import UNKNOWN, Finish, Spelling

Joined = Callable[[list[list[int]]], list[str]]  # The texts of rows of token ids.


def spelling_of(
    size: int, tokens: Mapping[str, int], joined: Joined, finish: Finish, letter: int | None = None
) -> Spelling:
    """Spelling of the first ``size`` token ids.

    Args:
      tokens: ids, by how the file writes a token.
      joined: texts before they are finished.
      finish: changes to a whole text.
      letter: a token that others are put behind; the first one that shows a letter if None.
    """
    alone = joined([[token] for token in range(size)])
    if letter is None or not _shows(alone[letter]):
        letter = next((token for token, text in enumerate(alone) if _shows(text)), 0)
    names, before = {i: token for token, i in tokens.items()}, len(alone[letter])
    pieces, first, byte_of = [], [], {}
    behind = joined([[letter, token] for token in range(size)])
    for token, text in enumerate(each[before:] for each in behind):
        name = names.get(token, "")
        if _BYTE.fullmatch(name) and text != name:
            byte_of[token] = int(name[3:5], 16)
            piece = bytes([byte_of[token]])
        elif UNKNOWN in text and set(name) <= _BYTE_OF.keys():
            # A part of a character, in GPT-2's letters for bytes.
            piece = bytes(_BYTE_OF[letter] for letter in name)
        else:
            piece = text.encode("utf-8")
        pieces.append(piece)
        first.append(alone[token].encode("utf-8") if _is_whole(piece) else piece)
    silent, apart, broken = _silent(joined, pieces, first), np.zeros(size, bool), "replaced"
    known = {byte: token for token, byte in byte_of.items()}
    if {*b"A\xc3\xa4"} <= known.keys():
        one, begun, ended = (known[byte] for byte in b"A\xc3\xa4")
        apart[:] = [token not in byte_of for token in range(size)]
        # Some tokens without text leave the bytes around them together.
        empty = [token for token in range(size) if not pieces[token]]
        whole = joined([[letter, begun, token, ended] for token in empty])
        apart[[i for i, text in zip(empty, whole, strict=True) if text[before:] == "ä"]] = False
        (text,) = joined([[letter, one, begun]])
        text = text[before:]
        broken = "dropped" if text == "A" else "replaced" if text[:1] == "A" else "run"
    return Spelling(pieces, pieces if first == pieces else first, silent, apart, broken, finish)


def _shows(text: str) -> bool:
    return bool(text.strip(f"{UNKNOWN} "))


def _silent(
    joined: Joined, pieces: Sequence[bytes], first: Sequence[bytes]
) -> Bool[np.ndarray, " v"]:
    """[V] whether the token behind this one is spelt as a first one, if this one is."""
    silent = np.zeros(len(pieces), bool)
    differ = [i for i, (a, b) in enumerate(zip(pieces, first, strict=True)) if a != b]
    if differ:
        other = next((i for i in differ if first[i]), differ[0])
        empty = [token for token, piece in enumerate(first) if not piece]
        texts = joined([[token, other] for token in empty])
        silent[empty] = [text == first[other].decode("utf-8") for text in texts]
    return silent


def _is_whole(piece: bytes) -> bool:
    """Whether it is characters, and no part of one."""
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _letters_for_bytes() -> dict[str, int]:
    """GPT-2's: printable ones stand for themselves, all others for those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE, _BYTE_OF = re.compile("<0x[0-9A-F]{2}>"), _letters_for_bytes()
