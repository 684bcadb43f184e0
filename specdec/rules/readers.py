"""Automata over bytes, for what is asked of the text that tokens show.

Between bytes and shown text are steps, one behind the other: UTF-8, stripping, replacements. Each
is a reader, which hands on what it makes of its letters to the next one; the last looks for
strings. A step holds back what it cannot decide yet, so each reader also knows whether a string is
there if the text ends here. States are plain values: those that can be reached are listed, and
numbered.
"""

from __future__ import annotations

import codecs
import functools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from specdec.rules.spelling import UNKNOWN, Spelling

CUT = 256  # Beside the bytes: bytes on both sides of it make no character together.
MOST_STEPS = 2**24  # Of an automaton that is being made.
FOUND = None  # The state behind a string, which nothing changes.
_DECODER = codecs.getincrementaldecoder("utf-8")
_LEADS = 0xC2, 0xE0, 0xF0  # The first bytes that have one, two and three behind them.
# Where bytes begin that do the same in UTF-8.
_BOUNDS = 0, 0x80, 0x90, 0xA0, 0xC0, *_LEADS[:2], 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5, CUT
_NARROW = {b"\xe0", b"\xed", b"\xf0", b"\xf4"}  # Not all second bytes may follow these.


class TooManyStates(ValueError):
    """The automaton takes too much memory."""


class Reader(Protocol):
    """A reader of letters, which are characters or bytes."""

    def start(self, fresh: bool) -> Any:
        """The state before a text; not ``fresh``, before what is put behind a text."""
        ...

    def after(self, state: Any, letter: Any) -> Any:
        """The state one letter on."""
        ...

    def found(self, state: Any) -> bool:
        """Whether a string is in the text if it ends here."""
        ...


class Search:
    """Looks for strings. A state is the beginning of one with which the text ends."""

    def __init__(self, strings: Iterable[str]):
        self.strings = tuple(strings)
        self.whole = frozenset(self.strings)
        self.begun = {each[:size] for each in self.strings for size in range(len(each))} | {""}

    def start(self, fresh: bool) -> str:
        del fresh
        return ""

    def after(self, state: str | None, letter: str) -> str | None:
        if state is None:
            return FOUND
        text = state + letter
        if any(text[at:] in self.whole for at in range(len(text))):
            return FOUND
        while text not in self.begun:
            text = text[1:]
        return text

    def found(self, state: str | None) -> bool:
        return state is FOUND


class Replaced:
    """Replaces a string, as ``str.replace`` does. A state also has what is held of the string."""

    def __init__(self, inner: Reader, old: str, new: str):
        self.inner, self.old, self.new = inner, old, new

    def start(self, fresh: bool) -> Any:
        return self.inner.start(fresh), ""

    def after(self, state: Any, letter: str) -> Any:
        inner, text = state[0], state[1] + letter
        at = next(i for i in range(len(text) + 1) if self.old.startswith(text[i:]))
        passed, held = (self.new, "") if text == self.old else (text[:at], text[at:])
        return _read(self.inner, inner, passed), held

    def found(self, state: Any) -> bool:
        return self.inner.found(_read(self.inner, *state))


class Stripped:
    """Strips whitespace. A state has the inner one before the last whitespace, and behind it."""

    def __init__(self, inner: Reader):
        self.inner = inner

    def start(self, fresh: bool) -> Any:
        state = self.inner.start(fresh)
        return state, state, fresh

    def after(self, state: Any, letter: str) -> Any:
        shown, inner, fresh = state
        space = letter.isspace()
        if fresh and space:
            return state
        inner = self.inner.after(inner, letter)
        return shown if space else inner, inner, False

    def found(self, state: Any) -> bool:
        return self.inner.found(state[0])


class Utf8:
    """UTF-8 that knows some characters; all others count as one.

    Attributes:
      dropped: whether bytes of no character are left out.
      letters: a byte of each kind, and :data:`CUT`; all bytes of a kind do the same.
      kinds: [257] the kind of each byte.
    """

    def __init__(self, characters: Iterable[str], dropped: bool = False):
        self.dropped = dropped
        known = [each.encode("utf-8") for each in {*characters}]
        self._begun = {b"", *(each[:size] for each in known for size in range(len(each)))}
        # The first byte of a character that is not known, if there is one in 0xF1..0xF3.
        unused = {0xF1, 0xF2, 0xF3}.difference(each[0] for each in known)
        self._other = bytes([*unused, 0xF1][:1]) + b"\x80\x80"
        own = {byte for each in known for byte in each}
        kinds = [byte if byte in own else -bisect_right(_BOUNDS, byte) for byte in range(CUT + 1)]
        _, first, self.kinds = np.unique(kinds, return_index=True, return_inverse=True)
        self.letters: list[int] = first.tolist()
        self.decoded = functools.cache(self._decoded)  # Few differ, and each is asked for often.

    def _decoded(self, pending: bytes, byte: int) -> tuple[str, bytes]:
        """The characters that are whole behind a byte, and the bytes of one that is not.

        Bytes of no character are lone surrogates, as "surrogateescape" makes them. Bytes of a
        character that is not known may be those of another one. They already count as one if
        nothing is dropped: whatever follows, something unknown is shown.
        """
        decoder = _DECODER("surrogateescape")
        text = decoder.decode(pending + bytes([byte][: byte < CUT]), byte == CUT)
        pending = decoder.getstate()[0]
        if b"\xed\xa0" <= pending < b"\xee":  # A surrogate's, whose last byte Python waits for.
            text, pending = text + decoder.decode(b"", True), b""
        unknown = pending not in self._begun
        if unknown and pending not in _NARROW:
            missing = bisect_right(_LEADS, pending[0]) + 1 - len(pending)
            pending = self._other[: 4 - missing]
        return whole(text) if self.dropped else text + UNKNOWN * unknown, pending


class Decoded:
    """Reads bytes, by characters. A state also has the bytes of one that is not whole."""

    def __init__(self, inner: Reader, utf8: Utf8):
        self.inner, self.utf8 = inner, utf8

    def start(self, fresh: bool) -> Any:
        return self.inner.start(fresh), b""

    def after(self, state: Any, letter: int) -> Any:
        text, pending = self.utf8.decoded(state[1], letter)
        return _read(self.inner, state[0], text), pending

    def found(self, state: Any) -> bool:
        inner, pending = state
        if pending and not self.utf8.dropped:
            inner = self.inner.after(inner, UNKNOWN)
        return self.inner.found(inner)


class InRuns:
    """Reads runs of bytes, whose characters are shown if all bytes of a run are of some.

    A state has the inner one behind the run's text, the one behind what it is replaced by, and the
    bytes of a character that is not whole; None where some are of none.
    """

    def __init__(self, inner: Reader, utf8: Utf8):
        self.inner, self.utf8 = inner, utf8

    def start(self, fresh: bool) -> Any:
        return self._begun(self.inner.start(fresh))

    def _begun(self, state: Any) -> Any:
        return state, self.inner.after(state, UNKNOWN), b""

    def after(self, state: Any, letter: int) -> Any:
        if letter == CUT:
            return self._begun(self._shown(state))
        text, replaced, pending = state
        if pending is None:
            return state
        read, pending = self.utf8.decoded(pending, letter)
        if read != whole(read):
            return None, replaced, None
        return _read(self.inner, text, read), replaced, pending

    def _shown(self, state: Any) -> Any:
        text, replaced, pending = state
        return text if pending == b"" else replaced

    def found(self, state: Any) -> bool:
        return self.inner.found(self._shown(state))


def _read(reader: Reader, state: Any, letters: str) -> Any:
    for letter in letters:
        state = reader.after(state, letter)
    return state


def whole(text: str) -> str:
    """The text without what stands for bytes of no character."""
    return "".join(letter for letter in text if not "\udc80" <= letter <= "\udcff")


WHITESPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


def finder_of(strings: Sequence[str], spelling: Spelling) -> Least:
    """The reader of bytes, and :data:`CUT`, that finds these strings in shown text.

    Raises:
      TooManyStates: the strings are too many.
    """
    finish = spelling.finish
    known = {*"".join(strings)}
    for old, new in finish.replaces:
        known |= {*old, *new}
    if finish.strips:
        known |= {*WHITESPACE}
    letters = [*sorted(known), UNKNOWN]
    reader = Least(Search(strings), letters)
    for old, new in reversed(finish.replaces):
        reader = Least(Replaced(reader, old, new), letters)
    if finish.strips:
        reader = Least(Stripped(reader), letters)
    utf8 = Utf8(known, spelling.broken == "dropped")
    by_characters = (InRuns if spelling.broken == "run" else Decoded)(reader, utf8)
    return Least(by_characters, utf8.letters, utf8.kinds)


class Least:
    """The smallest reader that finds the same as another one, in arrays.

    Args:
      letters: all that differ; any further one does as the last.
      kinds: [L] which of these each column of ``steps`` is of; None for one of each.

    Attributes:
      steps: [S, L] the state behind each letter.
      ends: [S] whether a string is in the text if it ends here.

    Raises:
      TooManyStates: it takes too much memory.
    """

    def __init__(self, reader: Reader, letters: Sequence[Any], kinds: np.ndarray | None = None):
        starts = reader.start(fresh=True), reader.start(fresh=False)
        states, steps = explored(starts, reader.after, letters)
        ends = np.array([*map(reader.found, states)])
        classes, first = least(steps, ends)
        steps = classes[steps[first]]
        self._rows, self._numbers = steps.tolist(), {each: i for i, each in enumerate(letters)}
        self._starts = [int(classes[states.index(start)]) for start in starts]
        self.steps, self.ends = steps if kinds is None else steps[:, kinds], ends[first]

    def start(self, fresh: bool) -> int:
        return self._starts[not fresh]

    def after(self, state: int, letter: Any) -> int:
        return self._rows[state][self._numbers.get(letter, -1)]

    def found(self, state: int) -> bool:
        return bool(self.ends[state])


def explored(
    starts: Sequence[Hashable], after: Callable[[Any, Any], Hashable], letters: Sequence[Any]
) -> tuple[list[Any], np.ndarray]:
    """All states that letters lead to.

    Args:
      starts: the first of them.
      after: (state, letter) -> the state behind it.

    Returns:
      The states, the first ones first; and [S, L] the number of the state behind each letter.

    Raises:
      TooManyStates: they take too much memory.
    """
    numbers = {state: i for i, state in enumerate(dict.fromkeys(starts))}
    states, steps = [*numbers], []
    for state in states:  # It grows.
        row = [after(state, letter) for letter in letters]
        states += [behind for behind in dict.fromkeys(row) if behind not in numbers]
        steps.append([numbers.setdefault(behind, len(numbers)) for behind in row])
        if len(states) * len(letters) > MOST_STEPS:
            raise TooManyStates
    return states, np.array(steps, np.int32)


def least(steps: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes of states: those of one class have one label whatever follows.

    Moore's refinement.

    Args:
      steps: [S, L] the state behind each letter.
      labels: [S].

    Returns:
      [S] the class of each state, and [C] the first state of each class.
    """
    kinds, count = labels, 0
    while True:
        rows = np.column_stack([kinds, kinds[steps]]).astype(np.int32)
        numbers: dict[bytes, int] = {}
        kinds = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])
        if len(numbers) == count:
            return kinds, np.unique(kinds, return_index=True)[1]
        count = len(numbers)


def walked(
    steps: np.ndarray, pieces: Sequence[bytes], apart: np.ndarray, starts: np.ndarray | None = None
) -> np.ndarray:
    """[S, V] the states behind whole pieces; of tokens without a piece those before them.

    Args:
      steps: [S, 257] of an automaton over bytes and :data:`CUT`.
      pieces: [V].
      apart: [V] see :class:`Spelling`.
      starts: the states to begin with; None for all.
    """
    begin = np.arange(len(steps)) if starts is None else starts
    cuts = [chr(CUT) * cut for cut in apart.tolist()]
    spelt = [f"{cut}{each.decode('latin-1')}{cut}" for each, cut in zip(pieces, cuts, strict=True)]
    letters = np.frombuffer("".join(spelt).encode("utf-32-le"), np.uint32).astype(np.intp)
    lengths = np.array([*map(len, spelt)])
    firsts = np.cumsum(lengths) - lengths
    flat = steps.T.reshape(-1)
    # Tokens that begin the same go the same way: the number of each one's beginning, and where
    # each beginning leads.
    numbers, behind = np.zeros(len(pieces), np.intp), begin[None].astype(np.int32)
    table = np.repeat(behind, len(pieces), axis=0)
    for place in range(lengths.max()):
        tokens, ended = np.flatnonzero(lengths > place), np.flatnonzero(lengths == place + 1)
        keys = numbers[tokens] * (CUT + 1) + letters[firsts[tokens] + place]
        keys, numbers[tokens] = np.unique(keys, return_inverse=True)
        before, letter = np.divmod(keys, CUT + 1)
        behind = flat.take(behind[before] + letter[:, None] * len(steps))
        table[ended] = behind[numbers[ended]]
    return table.T
