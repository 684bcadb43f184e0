"""UTF-8 as an automaton that tells some characters from all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

CUT = 256  # Beside the bytes: bytes on both sides of it make no character together.
_TAIL = (0x80, 0xBF)  # Bytes behind a character's first one.
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


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
    # A state is the bytes of a known character, or how many bytes are missing and where the next
    # one is.
    states: dict[bytes | tuple[int, int, int], int] = {b"": 0}
    begun, following, found, broken = [b""], [], [], []

    def after(state: bytes | tuple[int, int, int], byte: int):
        """The state behind a byte, or the letter of a whole character; None where it is none."""
        missing, low, high = state if isinstance(state, tuple) else _missing(state)
        if not low <= byte <= high:
            return None
        spelt = state + bytes([byte]) if isinstance(state, bytes) else b""
        if spelt in inside:
            return spelt
        if spelt in known:
            return known[spelt]
        if not state:
            missing, low, high = _missing(spelt)
            return (missing, low, high) if missing > 0 else None if missing else other
        return (missing - 1, *_TAIL) if missing > 1 else other

    for state in (queue := [b""]):
        rows: list[list[int]] = [[], [], []]
        example = begun[states[state]]
        for byte in range(256):
            to, is_broken = after(state, byte), False
            start = example
            if to is None and state:
                to, is_broken, start = after(b"", byte), True, b""
            if to is None:
                is_broken, to = True, b""
            letter = to if isinstance(to, int) else -1
            to = b"" if isinstance(to, int) else to
            if to not in states:
                states[to] = len(states)
                begun.append(start + bytes([byte]))
                queue.append(to)
            for row, value in zip(rows, (states[to], letter, is_broken), strict=True):
                row.append(value)
        for row, value in zip(rows, (0, -1, bool(state)), strict=True):
            row.append(value)
        for table, row in zip((following, found, broken), rows, strict=True):
            table.append(row)
    tables = np.array([following, found, broken])
    _, first, kinds = np.unique(
        tables.reshape(-1, CUT + 1), axis=1, return_index=True, return_inverse=True
    )
    following, found, broken = tables[..., first]
    return Characters(kinds.reshape(-1), following, found, broken > 0, begun, other)


def _missing(begun: bytes) -> tuple[int, int, int]:
    """How many bytes a character lacks, -1 if it is none, and between which the next one is."""
    if not begun:
        return 0, 0, 255
    lead = begun[0]
    if lead < 0x80:
        return 0, 0, 255
    if not 0xC2 <= lead <= 0xF4:
        return -1, 0, 255
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return size - len(begun), *(_SECOND.get(lead, _TAIL) if len(begun) == 1 else _TAIL)
