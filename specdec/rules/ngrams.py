"""No n-gram twice."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.fields import Count, checked
from specdec.core.pytrees import pytree
from specdec.rules.base import OwnRule, RowStart


@pytree
class History:
    """The tokens of a row so far.

    Attributes:
      tokens: [H], its prefix and its output; what stands behind them is filler.
      length: how many there are.
    """

    tokens: Int[Array, " h"]
    length: Int[Array, ""]

    @classmethod
    def of(cls, row: RowStart) -> History:
        """The prefix."""
        tokens = jnp.pad(jnp.asarray(row.prefix, jnp.int32), (0, row.size))
        return cls(tokens, jnp.asarray(row.prefix_length, jnp.int32))

    def followed(self, token: Int[Array, ""]) -> History:
        """One token on."""
        here = jnp.arange(len(self.tokens)) == self.length
        return History(jnp.where(here, token, self.tokens), self.length + 1)

    def last(self, count: int) -> Int[Array, " n"]:
        """The last ``count`` tokens; -1 for those in front of the first."""
        padded = jnp.pad(self.tokens, (count, 0), constant_values=-1)
        return jax.lax.dynamic_slice_in_dim(padded, self.length, count)


@checked(named=True)
class NoRepeatNgram(OwnRule):
    """No ``size`` tokens in a row occur twice, a prefix or a decoder-only model's prompt included.

    Source: Paulus et al. 2017, "A Deep Reinforced Model for Abstractive Summarization", section
    2.5 (trigrams); transformers' ``no_repeat_ngram_size``.

    Attributes:
      size: n, at least 1.

    Raises:
      ValueError: it is no whole number, or below 1.
    """

    size: Count

    def init(self, row: RowStart) -> History:
        return History.of(row)

    def allow(self, state: History, logits: Float[Array, " v"]) -> Float[Array, " v"]:
        """-inf for what followed the last n - 1 tokens where they stood before."""
        before, tokens = self.size - 1, state.tokens
        starts = len(tokens) - before
        if starts < 1:
            return logits
        last = state.last(before)
        same = jnp.arange(starts) + before < state.length
        for i in range(before):
            same &= tokens[i : i + starts] == last[i]
        again = jnp.where(same, tokens[before:], len(logits))
        return logits.at[again].set(-jnp.inf, mode="drop")

    def advance(self, state: History, token: Int[Array, ""]) -> History:
        return state.followed(token)
