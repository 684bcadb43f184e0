"""Strings found in the text that tokens show, wherever their pieces begin and end.

An automaton over bytes, :mod:`specdec.rules.readers`, goes through a whole piece for each token:
its table has the state behind each token, from each state.

A string is found at the first token behind which the text shown so far has it. That is the text of
the tokens so far as :func:`specdec.text.base.added_text` gives it, behind a prefix or a
prompt. It may end with what further tokens change, such as a space in front of a full stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.fronts import Fronts, Left, fronts_of
from specdec.rules.readers import TooManyStates, finder_of, walked
from specdec.rules.spelling import UNKNOWN, check_followed
from specdec.types import AnyArray

MOST_BYTES = 2**28  # Of a table.
MOST_AT_ONCE = 2**22  # Bytes of it that are made at once: larger arrays are slow to get.


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
    steps, ends = finder.steps, finder.ends
    kept = np.flatnonzero(~ends)
    fresh, found = len(kept), len(kept) + 1  # Before a text, and behind a string.
    size = (found + 1) * columns * 4
    if size > MOST_BYTES:
        raise ValueError(
            f"{name} has {length} bytes of strings; with {columns} tokens their table would take "
            f"{size / 1e6:.0f} MB, and at most {MOST_BYTES / 1e6:.0f} are allowed: give fewer "
            "strings."
        )
    numbers = np.where(ends, found, np.cumsum(~ends) - 1).astype(np.int32)
    table = np.full((found + 1, columns), found, np.int32)
    for some in np.array_split(kept, 1 + size // MOST_AT_ONCE):
        table[numbers[some]] = numbers[walked(steps, spelling.pieces, spelling.apart, some)]
    first = walked(steps, spelling.first, spelling.apart, np.array([finder.start(fresh=True)]))
    table[fresh] = np.where(spelling.silent, fresh, numbers[first[0]])
    # The token that ends an output shows nothing.
    table[:, list(target.eos_ids)] = np.arange(found + 1)[:, None]

    def start(left: Left) -> int:
        text, begun, torn = left
        state = finder.start(fresh=not text)
        for byte in b"\xff" if torn else begun:
            state = steps[state, byte]
        return int(numbers[state])

    replaced = [each for pair in spelling.finish.replaces for each in pair]
    known = "".join([*strings, *replaced])
    return TextTable(table, fronts_of(spelling, target, known, start, fresh))
