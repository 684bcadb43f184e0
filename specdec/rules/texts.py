"""Strings found in the text that tokens show, wherever their pieces begin and end.

An automaton over bytes, :mod:`specdec.rules.finders`, goes through a whole piece for each token:
its table has the state behind each token, from each state.

A string is found at the first token behind which the text shown so far has it. That is the text of
the tokens so far as :func:`specdec.data.vocabulary.added_text` gives it, behind a prefix or a
prompt. It may end with what further tokens change, such as a space in front of a full stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.pytrees import pytree, static_field
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.characters import CUT, characters_of
from specdec.rules.finders import WHITESPACE, TooManyStates, finder_of, least
from specdec.rules.spelling import UNKNOWN, Spelling, check_followed
from specdec.types import AnyArray

MOST_BYTES = 2**28  # Of a table.


@pytree
class Fronts:
    """What a row's text in front of its output, a prefix or a prompt, leaves for the output.

    An automaton, too, of few states. Most tokens lead to one of them wherever they are, so only
    those behind the last such token are looked at.

    Attributes:
      following: [Q, V] the state behind each token.
      resets: [V] whether the state behind a token is the same from all states.
      starts: [Q] in which state of the rule a row begins.
      begin: the state before a text.
      skipped: how many tokens of a prefix show none, whatever they would show elsewhere.
    """

    following: Int[AnyArray, "q v"]
    resets: Bool[AnyArray, " v"]
    starts: Int[AnyArray, " q"]
    begin: int = static_field()
    skipped: int = static_field()

    def start(self, row: RowStart) -> Int[Array, ""]:
        """The state of the rule in which a row begins."""
        starts, tokens = jnp.asarray(self.starts), jnp.asarray(row.prefix)
        if len(starts) == 1:
            return starts[0]
        index, end = jnp.arange(len(tokens)), jnp.asarray(row.prefix_length)
        resets = jnp.asarray(self.resets)[tokens] & (index < end)
        first = jnp.max(jnp.where(resets, index, 0), initial=self.skipped)
        following = jnp.asarray(self.following)

        def step(i, state):
            return following[state, tokens[i]].astype(jnp.int32)

        return starts[jax.lax.fori_loop(first, end, step, jnp.int32(self.begin))]


def fronts_of(
    spelling: Spelling, target: RuleTarget, firsts: str,
    start: Callable[[bool, bytes, bool], int], before: int,
) -> Fronts:  # fmt: skip
    """What is in front of the rows of a target.

    Args:
      firsts: the characters of which it matters that a prefix may end inside of them.
      start: (whether there is text in front, the bytes of a character that it ends inside of,
        whether it ends with a run of bytes that are no characters) -> the state of a rule.
      before: the state of a rule where nothing but silent tokens is in front.
    """
    strips, dropped = spelling.finish.strips, spelling.broken == "dropped"
    letters = dict.fromkeys([*firsts, *map(chr, WHITESPACE)] if strips else firsts)
    letters = {each: i for i, each in enumerate(letters)}
    characters = characters_of(letters, len(letters))
    torn = len(characters.begun)
    # A state is whether there is text, and the bytes of a begun character, or that a run is torn.
    states, index = [(not strips, 0)], {(not strips, 0): 0}
    spaces = {letters[chr(each)] for each in WHITESPACE if strips}
    steps = []
    cut = characters.kinds[CUT]
    for text, begun in states:
        row = []
        for kind in range(characters.following.shape[1]):
            if begun == torn:
                after = (True, 0 if kind == cut else torn)
            else:
                letter, broken = characters.letters[begun, kind], characters.broken[begun, kind]
                more = (letter >= 0 and letter not in spaces) or (broken and not dropped)
                tears = spelling.broken == "run" and broken and kind != cut
                after = (
                    bool(text or more),
                    torn if tears else int(characters.following[begun, kind]),
                )
            if after not in index:
                index[after] = len(states)
                states.append(after)
            row.append(index[after])
        steps.append(row)
    starts = np.array(
        [
            # Bytes that are shown as U+FFFD are text.
            start(text or (begun > 0 and not dropped), b"" if begun == torn else
                  characters.begun[begun], begun == torn)
            for text, begun in states
        ]
    )  # fmt: skip
    bytewise = np.array(steps)[:, characters.kinds]
    kinds = least(bytewise, starts)
    some = np.unique(kinds, return_index=True)[1]
    following = walked(kinds[bytewise[some]], spelling.pieces, spelling.apart, target.vocab_size)
    starts, begin = starts[some], int(kinds[0])
    if spelling.first is not spelling.pieces:
        first = walked(
            kinds[bytewise[some]], spelling.first, spelling.apart, target.vocab_size, [begin]
        )
        first[:, np.flatnonzero(spelling.silent)] = len(starts)
        first[:, len(spelling.pieces) :] = len(starts)
        following, begin = np.concatenate([following, first]), len(starts)
        starts = np.append(starts, before)
    resets = (following == following[0]).all(axis=0)
    return Fronts(
        following.astype(np.min_scalar_type(len(starts))), resets, starts.astype(np.int32), begin,
        0 if target.continues else 1,
    )  # fmt: skip


def walked(
    steps: np.ndarray, pieces: Sequence[bytes], apart: np.ndarray, size: int,
    starts: Sequence[int] | None = None,
) -> np.ndarray:  # fmt: skip
    """[S, V] the states behind whole pieces; of tokens without a piece those before them.

    Args:
      steps: [S, 257] of an automaton over bytes and :data:`CUT`.
      apart: see :class:`Spelling`.
      size: V; tokens beyond the pieces have none.
      starts: the states to begin with; None for all.
    """
    begin = np.arange(len(steps)) if starts is None else np.array(starts)
    table = np.repeat(begin.astype(np.int32)[:, None], size, axis=1)
    cut, lengths = np.append(apart, np.zeros(size, bool))[:size], np.zeros(size, int)
    lengths[: len(pieces)] = [*map(len, pieces)]
    for length in sorted({*lengths.tolist()}):
        tokens = np.flatnonzero((lengths == length) & (cut | (length > 0)))
        spelt = b"".join(pieces[token] for token in tokens)
        spelt = np.frombuffer(spelt, np.uint8).reshape(len(tokens), length)
        state = np.where(cut[tokens], steps[begin, CUT][:, None], begin[:, None])
        for column in spelt.T:
            state = steps[state, column]
        table[:, tokens] = np.where(cut[tokens], steps[state, CUT], state)
    return table


@pytree
class TextTable:
    """The automaton. State S - 1, which is never left, is that of a string that was found.

    Attributes:
      following: [S, V] the state behind each token.
      fronts: where rows begin.
    """

    following: Int[AnyArray, "s v"]
    fronts: Fronts

    @property
    def found(self) -> int:
        """The state behind the token with which a string is there."""
        return len(self.following) - 1

    def begin(self, row: RowStart) -> Int[Array, ""]:
        """The state of a row before its first token: what is before the output is not searched."""
        return self.fronts.start(row)

    def behind(self, state: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        """The state one token on."""
        return jnp.asarray(self.following)[state, token].astype(jnp.int32)

    def finds(self, state: Int[Array, ""]) -> Bool[Array, " v"]:
        """Which tokens complete a string."""
        return jnp.asarray(self.following)[state] == self.found


def text_table(name: str, strings: Sequence[str], target: RuleTarget) -> TextTable:
    """The automaton that finds these strings.

    Args:
      name: of what asks, for messages.

    Raises:
      ValueError: an empty string, one that no pieces make, one with U+FFFD, a pair without
        vocabulary, a decoder of texts that no table follows, or a table above :data:`MOST_BYTES`.
    """
    vocabulary = target.vocabulary
    if vocabulary is None:
        raise ValueError(f"{name} has strings, but this pair has no vocabulary; give token ids.")
    spelling = vocabulary.spelling(target.vocab_size)
    known = {byte for piece in {*spelling.pieces, *spelling.first} for byte in piece}
    known |= {byte for _, new in spelling.finish.replaces for byte in new.encode("utf-8")}
    for string in strings:
        spelt = string.encode("utf-8")
        if not spelt:
            raise ValueError(f"{name} has an empty string.")
        if UNKNOWN in string:
            raise ValueError(
                f"{name} has {string!r}: U+FFFD stands for bytes that are no character, which "
                "cannot be looked for; leave it out."
            )
        if not known.issuperset(spelt):
            raise ValueError(
                f"{name} has {string!r}, which the vocabulary cannot make: no piece of it has "
                f"{bytes(sorted(set(spelt) - known))!r}."
            )
    check_followed(name, vocabulary, spelling)
    length, columns = sum(len(each.encode("utf-8")) for each in strings), target.vocab_size
    try:
        finder = finder_of(strings, spelling)
    except TooManyStates:
        raise ValueError(
            f"{name} has {length} bytes of strings, whose automaton would be too large with this "
            "vocabulary: give fewer strings."
        ) from None
    states = np.flatnonzero(~finder.found)
    size = (len(states) + 2) * columns * 4
    if size > MOST_BYTES:
        raise ValueError(
            f"{name} has {length} bytes of strings; with {columns} tokens their table would take "
            f"{size / 1e6:.0f} MB, and at most {MOST_BYTES / 1e6:.0f} are allowed: give fewer "
            "strings."
        )
    fresh, found = len(states), len(states) + 1  # Before a text, and behind a string.
    numbers = np.full(len(finder.found), found, np.int32)
    numbers[states] = np.arange(len(states))
    table = np.full((len(states) + 2, columns), found, np.int32)
    table[:fresh] = numbers[walked(finder.steps, spelling.pieces, spelling.apart, columns, states)]
    table[fresh] = numbers[
        walked(finder.steps, spelling.first, spelling.apart, columns, [finder.fresh])
    ]
    table[fresh, len(spelling.pieces) :] = fresh
    table[fresh, np.flatnonzero(spelling.silent)] = fresh

    def start(text: bool, begun: bytes, torn: bool) -> int:
        state = finder.behind if text else finder.fresh
        for byte in b"\xff" if torn else begun:
            state = finder.steps[state, byte]
        return int(numbers[state])

    firsts = "".join(sorted({string[0] for string in strings}))
    return TextTable(table, fronts_of(spelling, target, firsts, start, fresh))
