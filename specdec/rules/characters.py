"""An automaton over UTF-8 that tells some characters from all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

CUT = 256  # Beside the bytes: bytes on both sides of it make no character together.
# The bytes of a known character that are there, none of any other; how many bytes are missing; and
# between which two the next one is.
_Begun = tuple[bytes, int, tuple[int, int]]
_TAIL = (0x80, 0xBF)  # Bytes behind a character's second one.
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
_BETWEEN: _Begun = (b"", 0, _TAIL)


@dataclasses.dataclass(frozen=True)
class Characters:
    """The automaton. State 0 is between characters, all others are inside of one.

    Attributes:
      kinds: [257] the kind of each byte, and of :data:`CUT`: bytes of one kind do the same.
      following: [P, K] the state behind a byte of each kind.
      letters: [P, K] the letter of the character that is complete then; -1 for none.
      broken: [P, K] whether bytes are then known to be no character: those before, or this one.
      begun: [P] bytes that lead to each state.
      other: the letter of all characters without one of their own.
    """

    kinds: np.ndarray
    following: np.ndarray
    letters: np.ndarray
    broken: np.ndarray
    begun: list[bytes]
    other: int


def characters_of(letters: Mapping[str, int], other: int) -> Characters:
    """The automaton.

    Args:
      letters: the characters that have a letter.
      other: the letter of all others.
    """
    known = {each.encode("utf-8"): letter for each, letter in letters.items()}
    inside = {each[:length] for each in known for length in range(1, len(each))}

    def after(state: _Begun, byte: int) -> tuple[_Begun, int] | None:
        """The state behind a byte, and the letter; None where no character goes on so."""
        spelt, missing, (low, high) = state
        if not missing:
            missing = 0 if byte < 0x80 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            spelt, following = bytes([byte]), _SECOND.get(byte, _TAIL)
            if 0x80 <= byte < 0xC2 or byte > 0xF4:
                return None
        elif low <= byte <= high:
            spelt, missing, following = spelt and spelt + bytes([byte]), missing - 1, _TAIL
        else:
            return None
        if not missing:
            return _BETWEEN, known.get(spelt, other)
        return (spelt if spelt in inside else b"", missing, following), -1

    begun, numbers, queue = [b""], {_BETWEEN: 0}, [_BETWEEN]
    tables: list[list[tuple[int, int, bool]]] = []
    for state in queue:
        row, spelt = [], begun[numbers[state]]
        for byte in range(256):
            found, before = after(state, byte), spelt
            broken = found is None
            if found is None:  # The byte is looked at again.
                found, before = after(_BETWEEN, byte) or (_BETWEEN, -1), b""
            to, letter = found
            if to not in numbers:
                numbers[to] = len(numbers)
                begun.append(before + bytes([byte]))
                queue.append(to)
            row.append((numbers[to], letter, broken))
        tables.append([*row, (0, -1, state != _BETWEEN)])
    table = np.array(tables).transpose(2, 0, 1)  # [3, P, 257]
    _, first, kinds = np.unique(
        table.reshape(-1, CUT + 1), axis=1, return_index=True, return_inverse=True
    )
    following, found, broken = table[..., first]
    return Characters(kinds.reshape(-1), following, found, broken > 0, begun, other)
