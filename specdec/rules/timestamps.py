"""Whisper's rule for timestamps: where they may stand, and when one must follow.

Source: Radford et al. 2022, section 4.5; ``WhisperTimeStampLogitsProcessor`` of transformers 5.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.fields import Natural, checked
from specdec.core.pytrees import pytree, static_field
from specdec.core.reductions import log_sum_exp, max_last
from specdec.rules.base import OpenRule, RowStart, RuleTarget


@checked(named=True)
class Timestamps:
    """Timestamps stand in pairs, and never decrease.

    An output begins with one. Behind the end of a segment follows the next one's beginning, or EOS.
    Where all timestamps together are likelier than any token of text, one of them must follow.

    Attributes:
      first: the token of 0.00; all from it on are timestamps. Text is what is before EOS.
      none: the token that says that there are none, which must not follow; it is before the first.
      most_initial: the latest that an output may begin with, counted from 0.00; None for any.

    Raises:
      ValueError: no token ids, or ``none`` is a timestamp; opened, one outside the vocabulary, or a
        model without EOS.
    """

    first: Natural
    none: Natural
    most_initial: Natural | None = None

    def __post_init__(self):
        if self.none >= self.first:
            raise ValueError(
                f"Timestamps.none must be less than first = {self.first}, got {self.none}."
            )

    def open(self, target: RuleTarget) -> OpenRule:
        if not target.eos_ids:
            raise ValueError("Timestamps needs a model with EOS, which ends what is text.")
        first, none = (target.token("Timestamps", each) for each in (self.first, self.none))
        last = target.vocab_size - 1
        if self.most_initial is not None:
            last = min(last, first + self.most_initial)
        return _Timestamps(first, none, target.eos_ids[0], last)


@pytree
class _State:
    """A row's place among timestamps.

    Attributes:
      begun: whether there is a token.
      last, before: whether the last one was a timestamp, and the one before it; where there is none
        before it counts as one.
      latest: the last timestamp; the one before 0.00 where there is none.
    """

    begun: Bool[Array, ""]
    last: Bool[Array, ""]
    before: Bool[Array, ""]
    latest: Int[Array, ""]


@pytree
class _Timestamps:
    """The rule with its token ids.

    Attributes:
      first, none: see :class:`Timestamps`.
      eos: what is before it is text.
      last_initial: the last token that an output may begin with.
    """

    first: int = static_field()
    none: int = static_field()
    eos: int = static_field()
    last_initial: int = static_field()

    def init(self, row: RowStart) -> _State:
        del row
        no = jnp.zeros((), bool)
        return _State(no, no, ~no, jnp.int32(self.first - 1))

    def allow(self, state: _State, logits: Float[Array, " v"]) -> Float[Array, " v"]:
        ended = state.last & ~state.before  # The next segment begins, perhaps at once, or EOS.
        ids = jnp.arange(len(logits))
        others, times = ids[: self.first], ids[self.first :]
        refused = (times < state.latest + ~ended) | (state.last & state.before)
        refused |= ~state.begun & (times > self.last_initial)
        times = jnp.where(refused, -jnp.inf, logits[self.first :])
        refused = (others == self.none) | ((others < self.eos) & ended) | ~state.begun
        others = jnp.where(refused, -jnp.inf, logits[: self.first])
        must_follow = log_sum_exp(times) > max_last(others)
        return jnp.concatenate([jnp.where(must_follow, -jnp.inf, others), times])

    def advance(self, state: _State, token: Int[Array, ""]) -> _State:
        is_time = token >= self.first
        return _State(
            jnp.ones((), bool), is_time, state.last | ~state.begun,
            jnp.where(is_time, token, state.latest),
        )  # fmt: skip
