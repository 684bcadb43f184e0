"""Regular expressions as automata over bytes, by outlines-core."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from specdec.rules.base import Rule, cut
from specdec.rules.readers import FOUND, WHITESPACE, Search, Utf8, explored, least
from specdec.rules.spelling import Finish

# Of one {n}: outlines-core makes all of their states before it gives any.
MOST_REPETITIONS = 10_000
_REPETITION = re.compile(r"(?<!\\)(?:\\\\)*\{([0-9]*),?([0-9]*)\}")


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """An automaton over bytes: what is matched and, beside it, what no text shows.

    A state is one of both together.

    Attributes:
      matched: [M, 257] the state behind each byte, -1 where no text goes on so.
      shown: [N, 256] the same.
      begin: the first state.
      accepting: [M N].
    """

    matched: np.ndarray
    shown: np.ndarray
    begin: int
    accepting: np.ndarray

    @property
    def states(self) -> int:
        """How many states there are: 0, 1, 2, ..."""
        return len(self.accepting)

    def step(self, states: np.ndarray, letters: np.ndarray) -> np.ndarray:
        """The states behind bytes, -1 where no text goes on so."""
        one, other = np.divmod(states, len(self.shown))
        one, other = self.matched[one, letters], self.shown[other, letters]
        return np.where((one < 0) | (other < 0), -1, one * len(self.shown) + other)


def automaton_of(rule: Rule, pattern: str, finish: Finish) -> ByteAutomaton:
    """The automaton over bytes of what is matched, without what no text shows."""
    core = library("outlines_core")
    bounds = [bound for pair in _REPETITION.findall(pattern) for bound in pair]
    if any(int(bound[:9] or 0) > MOST_REPETITIONS for bound in bounds):
        raise ValueError(
            f"{named(rule)} repeats something more than {MOST_REPETITIONS} times: use * or + "
            "instead of such a number."
        )
    alphabet = core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    ends = len(pattern) - len(pattern[:-1].rstrip("\\"))
    if pattern.endswith("$") and ends % 2:
        pattern = pattern[:-1]
    pattern = pattern.removeprefix("^")
    asked(rule, core.Index, pattern, alphabet)  # By itself: it may close groups of others.
    # Alone, an expression ends at its first alternative that matches. The byte in front is there
    # for expressions that match no text at all, whose first state the library would not find.
    index = asked(rule, core.Index, rf"\x00(?:{pattern})\z", alphabet)
    edges = index.get_transitions()
    numbers = {state: i for i, state in enumerate(edges)}
    steps = np.full((len(edges), 257), -1)  # The last is EOS.
    for state, following in edges.items():
        steps[numbers[state], list(following)] = [numbers[to] for to in following.values()]
    accepting = np.zeros((len(edges), 1), bool)
    accepting[[numbers[state] for state in index.get_final_states()]] = True
    shown, ends, first = _shown(finish)
    begin = int(steps[numbers[index.get_initial_state()], 0]) * len(shown) + first
    return ByteAutomaton(steps, shown, begin, (accepting & ends).reshape(-1))


def _shown(finish: Finish) -> tuple[np.ndarray, np.ndarray, int]:
    """An automaton over the bytes of texts that are shown as they are.

    These have nothing that is replaced, and do not end in whitespace where that is stripped.

    Returns:
      [N, 256] the state behind each byte, -1 where no text goes on so; [N] whether it may end; and
      the first state.
    """
    replaced = Search(old for old, _ in finish.replaces)
    utf8 = Utf8("".join(replaced.strings) + WHITESPACE * finish.strips)

    def after(state: tuple[str | None, bytes, bool], byte: int) -> Hashable:
        held, pending, space = state
        text, pending = utf8.decoded(pending, byte)
        for letter in text:
            held, space = replaced.after(held, letter), finish.strips and letter.isspace()
        return held, pending, space

    states, steps = explored([("", b"", False)], after, utf8.letters)
    never = np.array([held is FOUND for held, _, _ in states])
    spaces = np.array([space for _, _, space in states])
    classes, some = least(steps, 2 * never + spaces)
    steps = np.where(never[steps], -1, classes[steps])[some]
    return steps[:, utf8.kinds[:256]], ~spaces[some], int(classes[0])


def library(name: str) -> Any:
    """A module of outlines-core; raises ValueError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(
            "Regex and JsonSchema need outlines-core, which is not installed: "
            'pip install "specdec-jax[grammars]".'
        ) from None


def asked(rule: Rule, function: Callable[..., Any], *args: Any) -> Any:
    """Answer of outlines-core; raises ValueError, which names the rule, where it refuses."""
    try:
        return function(*args)
    except ValueError as error:
        reason = cut(" ".join(str(error).split()))
        raise ValueError(f"{named(rule)} is refused by outlines-core: {reason}") from None
    except TypeError:  # It is JSON, as this library reads it.
        raise ValueError(
            f"{named(rule)} is refused by outlines-core, which takes JSON of at most 127 levels "
            "and numbers of 64 bits."
        ) from None


def named(rule: Rule) -> str:
    """The rule as messages have it."""
    return cut(repr(rule))
