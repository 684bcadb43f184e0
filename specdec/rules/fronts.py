"""What the text in front of an output leaves for it, and whole pieces through an automaton."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree, static_field
from specdec.rules.base import RowStart, RuleTarget
from specdec.rules.characters import CUT, characters_of
from specdec.rules.finders import WHITESPACE, least
from specdec.rules.spelling import Spelling
from specdec.types import AnyArray


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


# What a text in front leaves: whether there is any, the bytes of a character that it ends inside
# of, and whether it ends with a run of bytes that are no characters.
Left = tuple[bool, bytes, bool]


def fronts_of(
    spelling: Spelling, target: RuleTarget, known: str, start: Callable[[Left], int], before: int
) -> Fronts:
    """What is in front of the rows of a target.

    Args:
      known: the characters that the rule tells from others.
      start: the state of a rule in which a row begins behind what is left.
      before: that state where nothing but silent tokens is in front.
    """
    left, steps = _left(spelling, known)
    starts = np.array([start(each) for each in left])
    kinds = least(steps, starts)
    some = np.unique(kinds, return_index=True)[1]
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
    """What may be left, and the automaton over bytes that tells it; [S], and [S, 257]."""
    finish, dropped = spelling.finish, spelling.broken == "dropped"
    spaces = [*map(chr, WHITESPACE)] if finish.strips else []
    letters = {each: i for i, each in enumerate(dict.fromkeys([*spaces, *known]))}
    characters = characters_of(letters, len(letters))
    torn, cut = len(characters.begun), characters.kinds[CUT]  # A state more: of a torn run.

    def after(text: bool, begun: int, kind: int) -> tuple[bool, int]:
        if begun == torn:
            return True, 0 if kind == cut else torn
        letter, broken = characters.letters[begun, kind], characters.broken[begun, kind]
        text = text or letter >= len(spaces) or bool(broken and not dropped)
        tears = spelling.broken == "run" and broken and kind != cut
        return text, torn if tears else int(characters.following[begun, kind])

    # Without stripping nothing depends on whether there is text, but for first tokens.
    states = [(not finish.strips, 0)]
    numbers, steps = {states[0]: 0}, []
    for state in states:
        row = [after(*state, kind) for kind in range(characters.following.shape[1])]
        for each in row:
            if each not in numbers:
                numbers[each] = len(states)
                states.append(each)
        steps.append([numbers[each] for each in row])
    left = [
        # Bytes that are shown as U+FFFD are text.
        (text or (begun > 0 and not dropped), b"" if begun == torn else characters.begun[begun],
         begun == torn)
        for text, begun in states
    ]  # fmt: skip
    return left, np.array(steps)[:, characters.kinds]


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
    table = np.repeat(begin.astype(np.int32)[:, None], len(pieces), axis=1)
    lengths = np.array([*map(len, pieces)])
    for length in sorted({*lengths.tolist()}):
        tokens = np.flatnonzero((lengths == length) & (apart | (length > 0)))
        cut, spelt = apart[tokens], b"".join(pieces[token] for token in tokens.tolist())
        state = np.where(cut, steps[begin, CUT][:, None], begin[:, None])
        for column in np.frombuffer(spelt, np.uint8).reshape(len(tokens), length).T:
            state = steps[state, column]
        table[:, tokens] = np.where(cut, steps[state, CUT], state)
    return table
