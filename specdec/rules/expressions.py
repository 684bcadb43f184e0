"""Regular expressions as automata over bytes, by outlines-core."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from specdec.rules.base import Rule
from specdec.rules.characters import characters_of
from specdec.rules.finders import WHITESPACE, searching
from specdec.rules.spelling import Finish

# Of one {n}: outlines-core makes all of their states before it gives any.
MOST_REPETITIONS = 10_000
_REPETITION = re.compile(r"(?<!\\)(?:\\\\)*\{([0-9]*),?([0-9]*)\}")
_LONGEST = 200  # Characters of an expression, and of what is said of it, in a message.


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """An automaton over bytes.

    Attributes:
      states: S; they are 0, 1, 2, ...
      begin: the first one.
      accepting: [S].
      step: (states, bytes) -> the states behind them, -1 where no text goes on so.
    """

    states: int
    begin: int
    accepting: np.ndarray
    step: Callable[[np.ndarray, np.ndarray], np.ndarray]


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
    steps = np.full((len(edges), 257), -1)
    for state, following in edges.items():
        steps[numbers[state], list(following)] = [numbers[to] for to in following.values()]
    accepting = np.zeros(len(edges), bool)
    accepting[[numbers[state] for state in index.get_final_states()]] = True
    # A text without what is replaced is shown as it is.
    words = [list(old.encode("utf-8")) for old, _ in finish.replaces]
    cleaned = searching(words, 256).steps
    pairs, endings, ends_in_space = len(cleaned), *_endings(finish.strips)
    count = len(endings)

    def step(states: np.ndarray, letters: np.ndarray) -> np.ndarray:
        both, ending = np.divmod(states, count)
        behind, seen = steps[both // pairs, letters], cleaned[both % pairs, letters]
        after = (behind * pairs + seen) * count + endings[ending, letters]
        return np.where((behind < 0) | (seen == pairs - 1), -1, after)

    begin = steps[numbers[index.get_initial_state()], 0] * pairs * count
    accepting = np.repeat(accepting, pairs)[:, None] & ~ends_in_space
    return ByteAutomaton(len(edges) * pairs * count, int(begin), accepting.reshape(-1), step)


def _endings(strips: bool) -> tuple[np.ndarray, np.ndarray]:
    """An automaton over bytes that tells what strips a text of its end: whitespace.

    Returns:
      [E, 256] the state behind each byte, and [E] whether the text then ends in whitespace. One
      state without any, where nothing strips.
    """
    if not strips:
        return np.zeros((1, 256), np.int64), np.zeros(1, bool)
    letters = {chr(code): 0 for code in WHITESPACE}
    characters = characters_of(letters, 1)
    states = len(characters.begun)
    kinds = characters.kinds[:256]
    behind = characters.following[:, kinds] + states * (characters.letters[:, kinds] == 0)
    return np.tile(behind, (2, 1)), np.arange(2 * states) == states


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
    """What outlines-core answers; raises ValueError, which names the rule, where it refuses."""
    try:
        return function(*args)
    except ValueError as error:
        told = cut(" ".join(str(error).split()))
        raise ValueError(f"{named(rule)} is refused by outlines-core: {told}") from None
    except TypeError:  # It is JSON, as this library reads it.
        raise ValueError(
            f"{named(rule)} is refused by outlines-core, which takes JSON of at most 127 levels "
            "and numbers of 64 bits."
        ) from None


def named(rule: Rule) -> str:
    """The rule as messages have it."""
    return cut(repr(rule))


def cut(text: str) -> str:
    """A text short enough for a message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
