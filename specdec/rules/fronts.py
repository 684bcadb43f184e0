"""Automata over the text in front of an output."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree, static_field
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.readers import CUT, WHITESPACE, Utf8, explored, least, walked, whole
from specdec.rules.spelling import Spelling
from specdec.types import AnyArray


@pytree
class Fronts:
    """States that a text in front of an output, a prefix or a prompt, leaves for the output.

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


# State that a text in front leaves: whether there is any text, the bytes of a character that it
# ends inside of, and whether it ends with a run of bytes that are no characters.
Left = tuple[bool, bytes, bool]


def fronts_of(
    spelling: Spelling, target: RuleTarget, known: str, start: Callable[[Left], int], before: int
) -> Fronts:
    """Fronts of the rows of a target.

    Args:
      known: the characters that the rule distinguishes.
      start: the state of a rule in which a row begins behind what is left.
      before: that state where nothing but silent tokens is in front.
    """
    left, steps = _left(spelling, known)
    starts = np.array([start(each) for each in left])
    kinds, some = least(steps, starts)
    steps, starts, begin = kinds[steps[some]], starts[some], int(kinds[0])
    following = walked(steps, spelling.pieces, spelling.apart)
    if spelling.first is not spelling.pieces:  # One more state: before a first token.
        first = walked(steps, spelling.first, spelling.apart, np.array([begin]))
        begin = len(starts)
        first[:, spelling.silent] = begin
        following, starts = np.concatenate([following, first]), np.append(starts, before)
    return Fronts(
        following.astype(np.min_scalar_type(len(starts))),
        (following == following[0]).all(axis=0), starts.astype(np.int32), begin,
        0 if target.continues else 1,
    )  # fmt: skip


def _left(spelling: Spelling, known: str) -> tuple[list[Left], np.ndarray]:
    """Texts that may be left, and the automaton over bytes that finds them; [S], and [S, 257]."""
    strips, dropped = spelling.finish.strips, spelling.broken == "dropped"
    utf8 = Utf8(known + WHITESPACE if strips else known, dropped)

    def after(left: Left, byte: int) -> Left:
        text, pending, torn = left
        if torn:
            return True, b"", byte != CUT
        letters, pending = utf8.decoded(pending, byte)
        text = text or bool(letters.strip() if strips else letters)
        if spelling.broken == "run" and letters != whole(letters) and byte != CUT:
            return text, b"", True
        return text, pending, False

    # Without stripping nothing depends on whether there is text, but for first tokens.
    states, steps = explored([(not strips, b"", False)], after, utf8.letters)
    # Bytes that are shown as U+FFFD are text.
    left = [
        (text or (pending != b"" and not dropped), pending, torn) for text, pending, torn in states
    ]
    return left, steps[:, utf8.kinds]
