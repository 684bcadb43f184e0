"""Tokens, sequences of tokens and strings that never occur."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.rules.automata import token_ids
from specdec.rules.base import OpenRule, RowStart, RuleTarget, sequences_of
from specdec.rules.ngrams import History
from specdec.rules.texts import TextTable, text_table
from specdec.types import AnyArray


@dataclasses.dataclass(frozen=True)
class Forbidden:
    """What never occurs in an output: strings, or sequences of token ids.

    A string is forbidden in the text that is shown, whatever tokens it would be made of: no token
    passes with which the text so far would have it, even if later ones would change that, as where
    a space in front of a full stop is taken away. Of a sequence of token
    ids the last token may not follow the others, which may also be the end of a prefix or of a
    decoder-only model's prompt: transformers' ``bad_words_ids``.

    Attributes:
      sequences: strings, or lists of token ids.

    Raises:
      ValueError: there are none, or an empty one; opened, a token outside the vocabulary, or a
        string that :func:`~specdec.rules.texts.text_table` refuses.
    """

    sequences: Sequence[str | Sequence[int]]

    def __post_init__(self):
        kept = sequences_of("Forbidden", self.sequences)
        object.__setattr__(self, "sequences", kept)

    def open(self, target: RuleTarget) -> OpenRule:
        strings = [each for each in self.sequences if isinstance(each, str)]
        others = [each for each in self.sequences if not isinstance(each, str)]
        ids, table = token_ids("Forbidden", others, target), None
        if strings:
            table = text_table("Forbidden", strings, target)
        alone = target.mask([each[0] for each in ids if len(each) == 1])
        if alone.all():
            raise ValueError("Forbidden leaves no token at all.")
        longer = [each for each in ids if len(each) > 1]
        most = max((len(each) - 1 for each in longer), default=0)
        before = np.full((len(longer), most), -1, np.int32)
        for row, each in zip(before, longer, strict=True):
            row[most - len(each) + 1 :] = each[:-1]
        last = np.array([each[-1] for each in longer], np.int32)
        return _Forbidden(alone, before, last, table)


@pytree
class _ForbiddenState:
    last: Int[Array, " n"]  # Tokens; -1 for those in front of the first.
    text: Int[Array, ""]


@pytree
class _Forbidden:
    alone: Bool[AnyArray, " v"]
    before: Int[AnyArray, "f n"]  # Right-aligned; -1 for any token.
    last: Int[AnyArray, " f"]
    table: TextTable | None

    def init(self, row: RowStart) -> _ForbiddenState:
        text = jnp.int32(0) if self.table is None else self.table.begin(row)
        return _ForbiddenState(History.of(row).last(self.before.shape[1]), text)

    def allow(self, state: _ForbiddenState, logits: Float[Array, " v"]) -> Float[Array, " v"]:
        mask = jnp.asarray(self.alone)
        if len(self.last):
            same = jnp.all((self.before == state.last) | (self.before < 0), axis=1)
            mask = mask.at[jnp.where(same, self.last, len(mask))].set(True, mode="drop")
        if self.table is not None:
            mask |= self.table.finds(state.text)
        return jnp.where(mask, -jnp.inf, logits)

    def advance(self, state: _ForbiddenState, token: Int[Array, ""]) -> _ForbiddenState:
        text = state.text if self.table is None else self.table.behind(state.text, token)
        return _ForbiddenState(jnp.concatenate([state.last, token[None]])[1:], text)
