"""Automata over bytes that find strings in the text that is shown.

Aho and Corasick's automaton (1975) reads the letters of a finished text. What makes that text of
bytes is put in front of it, one step after the other, and each step gives an automaton over what it
reads itself: replacements, stripping, and UTF-8. A step holds back what it cannot decide yet, so
each state also knows whether a string is there if the text ends with it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from specdec.rules.characters import CUT, Characters, characters_of
from specdec.rules.spelling import Spelling

MOST_STEPS = 2**24  # Of an automaton that is being made.
Codes = np.ndarray  # [N] numbers of states of two automata together.


class TooManyStates(ValueError):
    """The automaton takes too much memory."""


@dataclasses.dataclass(frozen=True)
class Finder:
    """An automaton that says whether a string is in the text so far.

    Attributes:
      steps: [S, L] the state behind each letter.
      found: [S] whether a string is in the text if it ends here.
      fresh: the state before a text.
      behind: the state before what is put behind a text.
    """

    steps: np.ndarray
    found: np.ndarray
    fresh: int = 0
    behind: int = 0


def finder_of(strings: Sequence[str], spelling: Spelling) -> Finder:
    """The automaton over bytes, and :data:`CUT`, that finds these strings in shown text.

    Raises:
      TooManyStates: the strings are too many.
    """
    finish = spelling.finish
    cuts = any(not spelling.pieces[token] for token in np.flatnonzero(spelling.apart).tolist())
    whole = not cuts or all(map(str.isascii, strings))
    by_bytes = spelling.broken == "replaced" and not finish.strips and whole
    if by_bytes:  # A character is found wherever its bytes are, whatever is around them.
        spelt = [list(each.encode("utf-8")) for each in strings]
        replaces = [
            (list(old.encode("utf-8")), list(new.encode("utf-8"))) for old, new in finish.replaces
        ]
    else:
        spelt = [list(map(ord, each)) for each in strings]
        replaces = [(list(map(ord, old)), list(map(ord, new))) for old, new in finish.replaces]
    spaces = WHITESPACE if finish.strips else []
    listed = [*spelt, *(each for pair in replaces for each in pair), spaces]
    letters = {each: i for i, each in enumerate(sorted({each for word in listed for each in word}))}
    finder = searching([[letters[each] for each in word] for word in spelt], len(letters) + 1)
    for old, new in reversed(replaces):
        finder = _replaced(finder, *([letters[each] for each in word] for word in (old, new)))
    if finish.strips:
        finder = _stripped(
            finder, np.isin(np.arange(len(letters) + 1), [letters[each] for each in spaces])
        )
    if by_bytes:
        kinds = [letters.get(byte, len(letters)) for byte in range(256)]
        steps = np.c_[finder.steps[:, kinds], np.arange(len(finder.steps))]
        return dataclasses.replace(finder, steps=steps)
    characters = characters_of({chr(each): i for each, i in letters.items()}, len(letters))
    if spelling.broken == "run":
        finder = _in_runs(finder, characters)
    else:
        finder = _decoded(finder, characters, dropped=spelling.broken == "dropped")
    return dataclasses.replace(finder, steps=finder.steps[:, characters.kinds])


WHITESPACE = [code for code in range(0x3001) if chr(code).isspace()]


def searching(words: Sequence[Sequence[int]], letters: int) -> Finder:
    """The automaton that finds words of letters 0, 1, 2, ... Its last state is that of a find."""
    children: list[dict[int, int]] = [{}]
    ends = set()
    for word in words:
        state = 0
        for letter in word:
            if letter not in children[state]:
                children[state][letter] = len(children)
                children.append({})
            state = children[state][letter]
        ends.add(state)
    find = len(children)
    steps = np.zeros((find + 1, letters), np.int32)
    steps[find] = find
    queue, fallback = deque([0]), [0] * find
    while queue:
        state = queue.popleft()
        if state:
            steps[state] = steps[fallback[state]]
        if fallback[state] in ends:
            ends.add(state)
        for letter, child in children[state].items():
            fallback[child] = int(steps[fallback[state], letter]) if state else 0
            steps[state, letter] = child
            queue.append(child)
    # The states behind a find are left out: nothing leads there.
    kept = np.array([state not in ends for state in range(find)] + [True])
    numbers = np.where(kept, np.cumsum(kept) - 1, kept.sum() - 1)
    found = np.arange(kept.sum()) == kept.sum() - 1
    return Finder(numbers[steps[kept]].astype(np.int32), found)


def _replaced(finder: Finder, old: Sequence[int], new: Sequence[int]) -> Finder:
    """Finder in a text where each ``old`` becomes ``new``: Knuth, Morris and Pratt's automaton."""
    letters = finder.steps.shape[1]
    borders = [0, 0]  # Of the first letters of ``old``: how many of them they end with.
    for i in range(1, len(old)):
        size = borders[i]
        while size and old[size] != old[i]:
            size = borders[size]
        borders.append(size + (old[size] == old[i]))
    rows: list[list[tuple[list[int], int]]] = []
    for held in range(len(old)):
        row = []
        for letter in range(letters):
            output, size = [], held
            while size and old[size] != letter:
                output += old[: size - borders[size]]
                size = borders[size]
            size += old[size] == letter
            if not size:
                output.append(letter)
            row.append(([*output, *new], 0) if size == len(old) else (output, size))
        rows.append(row)
    following = np.array([[to for _, to in row] for row in rows])
    output = np.stack([_padded([word for word, _ in row], len(old) + len(new)) for row in rows])
    ends = _padded([list(old[:held]) for held in range(len(old))], len(old))
    return _through(finder, following, output, ends)


def _padded(words: Sequence[Sequence[int]], size: int) -> np.ndarray:
    """[N, size], with -1 behind the words."""
    return np.array([[*word, *[-1] * (size - len(word))] for word in words])


def _through(finder: Finder, following: np.ndarray, output: np.ndarray, ends: np.ndarray) -> Finder:
    """The automaton that reads a transducer's input, and finds in its output.

    Args:
      finder: reads what the transducer writes.
      following: [Q, L] the transducer's state behind each letter; its first state is 0.
      output: [Q, L, W] letters that it writes on the way; -1 for none.
      ends: [Q, W] letters that it writes if the text ends.
    """
    count, after = len(following), _runner(finder)

    def step(codes: Codes) -> np.ndarray:
        states, held = np.divmod(codes, count)
        return after(states[:, None], output[held]) * count + following[held]

    def found(codes: Codes) -> np.ndarray:
        return finder.found[after(codes // count, ends[codes % count])]

    return _least(finder.fresh * count, finder.behind * count, step, found)


def _runner(finder: Finder) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(states [...], letters [..., W]) -> the states behind them. Letter -1 changes nothing."""
    steps = np.c_[finder.steps, np.arange(len(finder.steps))].astype(np.int64)

    def after(states: np.ndarray, letters: np.ndarray) -> np.ndarray:
        for place in range(letters.shape[-1]):
            states = steps[states, letters[..., place]]
        return states

    return after


def _stripped(finder: Finder, spaces: np.ndarray) -> Finder:
    """Finder in a text that loses its whitespace at both ends.

    Args:
      spaces: [L] whether each letter is whitespace.
    """
    count = len(finder.steps)

    def step(codes: Codes) -> np.ndarray:
        both, fresh = np.divmod(codes, 2)
        shown, held = np.divmod(both, count)
        after = finder.steps[held].astype(np.int64)
        same = np.where(fresh[:, None] == 1, codes[:, None], (shown[:, None] * count + after) * 2)
        return np.where(spaces, same, (after * count + after) * 2)

    begin = finder.fresh * (count + 1) * 2
    return _least(begin + 1, begin, step, lambda codes: finder.found[codes // 2 // count])


def _decoded(finder: Finder, characters: Characters, dropped: bool) -> Finder:
    """Finder in bytes; the text has their characters, and others are dropped or replaced."""
    letters = characters.letters[..., None]
    ends = np.where(np.arange(len(characters.begun)) > 0, characters.other, -1)[:, None]
    if dropped:
        return _through(finder, characters.following, letters, np.full_like(ends, -1))
    replaced = np.where(characters.broken, characters.other, -1)[..., None]
    return _through(finder, characters.following, np.concatenate([replaced, letters], -1), ends)


def _in_runs(finder: Finder, characters: Characters) -> Finder:
    """Finder in runs of bytes; the text has their characters if all bytes of a run are some.

    A state has the text with the run and with it replaced, and the bytes of a begun character.
    """
    count, held, other = len(finder.steps), len(characters.begun) + 1, characters.other
    steps = np.c_[finder.steps, np.arange(count)].astype(np.int64)
    cut = characters.kinds[CUT]
    torn = held - 1  # The state of a run in which bytes are no character.
    following = np.where(characters.broken, torn, characters.following)
    following = np.concatenate([following, np.full_like(following[:1], torn)])
    following[:, cut] = 0
    letters = np.concatenate([characters.letters, np.full_like(following[:1], -1)])

    def parts(codes: Codes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        both, begun = np.divmod(codes, held)
        return *np.divmod(both, count), begun

    def begin(states: np.ndarray) -> np.ndarray:
        return (steps[states, other] * count + states) * held

    def shown(codes: Codes) -> np.ndarray:
        replaced, text, begun = parts(codes)
        return np.where(begun == 0, text, replaced)

    def step(codes: Codes) -> np.ndarray:
        replaced, text, begun = parts(codes)
        text = np.where(
            following[begun] == torn, replaced[:, None], steps[text[:, None], letters[begun]]
        )
        after = (replaced[:, None] * count + text) * held + following[begun]
        after[:, cut] = begin(shown(codes))
        return after

    fresh, behind = begin(np.array([finder.fresh, finder.behind])).tolist()
    return _least(fresh, behind, step, lambda codes: finder.found[shown(codes)])


def _least(
    fresh: int, behind: int, step: Callable[[Codes], np.ndarray],
    found: Callable[[Codes], np.ndarray],
) -> Finder:  # fmt: skip
    """The smallest automaton that finds the same as another one.

    Args:
      fresh, behind: where it begins; see :class:`Finder`.
      step: (codes [N]) -> [N, L] the codes behind each letter.
      found: (codes [N]) -> [N] whether a string is in the text if it ends there.

    Raises:
      TooManyStates: it takes too much memory.
    """
    codes = new = np.unique([fresh, behind])
    while new.size:
        reached = step(new)
        if (codes.size + new.size) * reached.shape[1] > MOST_STEPS:
            raise TooManyStates
        new = np.setdiff1d(reached, codes)
        codes = np.union1d(codes, new)
    steps, label = np.searchsorted(codes, step(codes)), found(codes)
    kinds = least(steps, label)
    first = np.unique(kinds, return_index=True)[1]
    begins = np.searchsorted(codes, [fresh, behind])
    return Finder(kinds[steps[first]].astype(np.int32), label[first], *kinds[begins].tolist())


def least(steps: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[S] the class of each state: those of one class have one label whatever follows.

    Moore's refinement.

    Args:
      steps: [S, L] the state behind each letter.
      labels: [S].
    """
    columns = np.unique(steps, axis=1)  # Letters that do the same everywhere count once.
    kinds = np.unique(labels, return_inverse=True)[1]
    while True:
        finer = np.column_stack([kinds, kinds[columns]]).astype(np.int32)
        finer = np.unique(finer, axis=0, return_inverse=True)[1].reshape(-1)
        if finer.max() == kinds.max():
            return kinds
        kinds = finer
