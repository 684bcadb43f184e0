"""Strings found in the text that tokens make, wherever their pieces begin and end.

An automaton over bytes (Aho and Corasick 1975) that goes through a whole piece for each token: its
table has the state behind each token, from each state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.pytrees import pytree, static_field
from specdec.rules.base import RowStart, RuleTarget, Words
from specdec.types import AnyArray

MOST_BYTES = 2**28  # Of a table.
_BEGIN, _ROOT = 0, 1  # Before the first token, and where nothing is matched.


@pytree
class Fronts:
    """Which rows have text in front of their output: a prefix, or a prompt.

    Attributes:
      has_text: [V] whether a token shows text.
      skipped: how many tokens of a prefix show none, whatever they would show elsewhere.
    """

    has_text: Bool[AnyArray, " v"]
    skipped: int = static_field()

    @classmethod
    def of(cls, pieces: Sequence[bytes], target: RuleTarget) -> Fronts:
        """Those of a target whose tokens have these pieces."""
        has_text = np.zeros(target.vocab_size, bool)
        has_text[: len(pieces)] = [bool(piece) for piece in pieces]
        return cls(has_text, 0 if target.continues else 1)  # Else the first is a start token.

    def is_text(self, row: RowStart) -> Bool[Array, ""]:
        """Whether there is text in front of a row."""
        index = jnp.arange(len(row.prefix))
        there = (index >= self.skipped) & (index < jnp.asarray(row.prefix_length))
        return jnp.any(there & jnp.asarray(self.has_text)[jnp.asarray(row.prefix)])


@pytree
class TextTable:
    """The automaton. State S - 1, which is never left, is that of a string that was found.

    Attributes:
      following: [S, V] the state behind each token.
      fronts: which rows have text in front.
      strips: whether a text loses the space before its first word.
    """

    following: Int[AnyArray, "s v"]
    fronts: Fronts
    strips: bool = static_field()

    @property
    def found(self) -> int:
        """The state behind a string's last byte."""
        return len(self.following) - 1

    def begin(self, row: RowStart) -> Int[Array, ""]:
        """The state of a row before its first token: what is before the output is not searched."""
        # Behind a prefix a space stays where it is.
        return jnp.where(self.strips & ~self.fronts.is_text(row), _BEGIN, _ROOT)

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
      ValueError: an empty string, one that no pieces make, a pair without vocabulary, or a table
        above :data:`MOST_BYTES`.
    """
    vocabulary = target.vocabulary
    if vocabulary is None:
        raise ValueError(f"{name} has strings, but this pair has no vocabulary; give token ids.")
    # An embedding may have more rows than there are pieces.
    pieces = vocabulary.pieces()[: target.vocab_size]
    known = {byte for piece in pieces for byte in piece}
    encoded = [each.encode("utf-8") for each in strings]
    for string, spelt in zip(strings, encoded, strict=True):
        if not spelt:
            raise ValueError(f"{name} has an empty string.")
        if not known.issuperset(spelt):
            raise ValueError(
                f"{name} has {string!r}, which the vocabulary cannot make: no piece of it has "
                f"{bytes(sorted(set(spelt) - known))!r}."
            )
    steps = bytewise(encoded)
    size = (len(steps) + 1) * target.vocab_size
    if size * 4 > MOST_BYTES:
        raise ValueError(
            f"{name} has {sum(map(len, encoded))} bytes of strings; with {target.vocab_size} "
            f"tokens their table would take {size * 4 / 1e6:.0f} MB, and at most "
            f"{MOST_BYTES / 1e6:.0f} are allowed: give fewer strings."
        )
    table = np.zeros((len(steps) + 1, target.vocab_size), np.int32)
    table[_BEGIN, :] = _BEGIN
    table[1:, :] = np.arange(len(steps))[:, None] + 1
    for length in sorted({len(piece) for piece in pieces} - {0}):
        tokens = np.array([i for i, piece in enumerate(pieces) if len(piece) == length])
        spelt = np.frombuffer(b"".join(pieces[i] for i in tokens), np.uint8).reshape(-1, length)
        state = np.broadcast_to(np.arange(len(steps))[:, None], (len(steps), len(tokens)))
        first = np.zeros(len(tokens), np.int64)
        for place, column in enumerate(spelt.T):
            state = steps[state, column]
            space = (column == ord(" ")) & (place == 0)
            first = np.where(space, first, steps[first, column])
        table[1:, tokens] = state + 1
        table[_BEGIN, tokens] = first + 1
    # Nothing leads to the states that nothing needs; both are kept, and stay small.
    return TextTable(table, Fronts.of(pieces, target), _strips(vocabulary, pieces))


def _strips(vocabulary: Words, pieces: Sequence[bytes]) -> bool:
    """Whether a text loses the space of its first word."""
    spaced = ((i, piece) for i, piece in enumerate(pieces) if piece.startswith(b" "))
    return any(
        vocabulary.decode([i]).encode("utf-8") == piece[1:] for i, piece in spaced if piece[1:]
    )


def bytewise(strings: Sequence[bytes]) -> np.ndarray:
    """[S, 256]: the state behind each byte. State 0 is the root, the last one that of a find."""
    children: list[dict[int, int]] = [{}]
    ends = set()
    for string in strings:
        state = 0
        for byte in string:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
            state = children[state][byte]
        ends.add(state)
    found = len(children)
    steps = np.zeros((found + 1, 256), np.int64)
    steps[found] = found
    queue, fallback = deque([0]), [0] * found
    while queue:
        state = queue.popleft()
        if state:
            steps[state] = steps[fallback[state]]
        if fallback[state] in ends:
            ends.add(state)
        for byte, child in children[state].items():
            fallback[child] = int(steps[fallback[state], byte]) if state else 0
            steps[state, byte] = child
            queue.append(child)
    steps[sorted(ends)] = found
    return np.where(np.isin(steps, sorted(ends)), found, steps)
