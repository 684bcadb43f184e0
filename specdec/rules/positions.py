"""Rules that depend on a token's place in the output: its least length, its first token, its last.

What is forced has the logit 0, and all else -inf, as in transformers: beams count log p = 0 for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.arguments import MOST, whole
from specdec.core.fields import Natural, checked
from specdec.core.pytrees import pytree, static_field
from specdec.rules.base import OpenRule, RowStart, RuleTarget
from specdec.types import AnyArray


@checked(named=True)
class MinLength:
    """EOS may not follow before there are ``length`` tokens, those of the prefix included.

    Source: transformers' ``min_length``, which counts an encoder-decoder's start token and a
    decoder-only model's prompt, too.

    Attributes:
      length: at least 0.

    Raises:
      ValueError: it is no whole number or below 0; opened, it leaves no output within
        ``max_decode_len``.
    """

    length: Natural

    def open(self, target: RuleTarget) -> OpenRule:
        if not target.continues:  # The start token.
            _check_least("MinLength", self.length, self.length - 1, target)
        return _Placed.of(target.mask(target.eos_ids), 0, self.length, prefix=1)


@checked(named=True)
class MinNewTokens:
    """EOS may not follow before the output has ``count`` tokens.

    Source: transformers' ``min_new_tokens``; vLLM's ``min_tokens``.

    Attributes:
      count: at least 0.

    Raises:
      ValueError: it is no whole number or below 0; opened, it leaves no output within
        ``max_decode_len``.
    """

    count: Natural

    def open(self, target: RuleTarget) -> OpenRule:
        _check_least("MinNewTokens", self.count, self.count, target)
        return _Placed.of(target.mask(target.eos_ids), 0, self.count)


def _check_least(name: str, given: int, tokens: int, target: RuleTarget) -> None:
    if tokens > target.max_decode_len:
        raise ValueError(
            f"{name}({given}) asks for at least {tokens} tokens, and max_decode_len = "
            f"{target.max_decode_len} allows fewer: raise max_decode_len or lower {name}."
        )


@checked(named=True)
class ForcedFirst:
    """The output begins with ``token``, unless an encoder-decoder's was made to begin otherwise.

    Source: transformers' ``forced_bos_token_id``.

    Raises:
      ValueError: no token id; opened, one outside the vocabulary.
    """

    token: Natural

    def open(self, target: RuleTarget) -> OpenRule:
        forced = target.mask([target.token("ForcedFirst", self.token)])
        if target.continues:
            return _Placed.of(forced, 0, 1, forced=True)
        return _Placed.of(forced, 1, 2, forced=True, prefix=1)  # Behind the start token.


@checked(named=True)
class ForcedLast:
    """An output that has not ended before ends with ``token`` at its limit.

    Source: transformers' ``forced_eos_token_id``.

    Attributes:
      token: None for EOS.

    Raises:
      ValueError: no token id; opened, one outside the vocabulary, or None for a model without EOS.
    """

    token: Natural | None = None

    def open(self, target: RuleTarget) -> OpenRule:
        if self.token is None and not target.eos_ids:
            raise ValueError("ForcedLast() needs a model with EOS; give it a token.")
        token = target.eos_ids[0] if self.token is None else self.token
        forced = target.mask([target.token("ForcedLast", token)])
        return _Placed.of(forced, -1, 0, forced=True, limit=-1)


@checked(named=True)
class Suppressed:
    """Some tokens never follow, or not at one place of the output.

    Source: transformers' ``suppress_tokens`` and ``begin_suppress_tokens``.

    Attributes:
      tokens: their ids.
      at: the place, from 0; None for everywhere.

    Raises:
      ValueError: no token ids; opened, one outside the vocabulary, or all tokens.
    """

    tokens: Sequence[int]
    at: Natural | None = None

    def __post_init__(self):
        if isinstance(self.tokens, str) or not isinstance(self.tokens, Iterable):
            raise ValueError(f"Suppressed.tokens must be a list of token ids, got {self.tokens!r}.")
        tokens = tuple(whole("each of Suppressed.tokens", each, 0) for each in self.tokens)
        object.__setattr__(self, "tokens", tokens)

    def open(self, target: RuleTarget) -> OpenRule:
        mask = target.mask([target.token("Suppressed", each) for each in self.tokens])
        if mask.all():
            raise ValueError("Suppressed leaves no token at all.")
        return _Placed.of(mask, self.at or 0, MOST if self.at is None else self.at + 1)


@pytree
class _Placed:
    """Tokens that must not follow at some places, or of which one must.

    Attributes:
      tokens: [V].
      first, behind: the places, from the first to the one behind the last.
      prefix, limit: a row's first place is ``prefix`` times its prefix's length and ``limit`` times
        its limit.
      forced: whether one of the tokens must follow.
    """

    tokens: Bool[AnyArray, " v"]
    first: Int[AnyArray, ""]
    behind: Int[AnyArray, ""]
    prefix: Int[AnyArray, ""]
    limit: Int[AnyArray, ""]
    forced: bool = static_field()

    @classmethod
    def of(
        cls, tokens: np.ndarray, first: int, behind: int, *, prefix: int = 0, limit: int = 0,
        forced: bool = False,
    ) -> _Placed:  # fmt: skip
        """The rule with these numbers as arrays."""
        return cls(tokens, *map(np.int32, (first, behind, prefix, limit)), forced=forced)

    def init(self, row: RowStart) -> Int[Array, ""]:
        """The place of the first token."""
        return self.prefix * jnp.asarray(row.prefix_length, jnp.int32) + self.limit * row.limit

    def allow(self, state: Int[Array, ""], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        here = (self.first <= state) & (state < self.behind)
        if self.forced:
            return jnp.where(here, jnp.where(self.tokens, 0.0, -jnp.inf), logits)
        return jnp.where(here & self.tokens, -jnp.inf, logits)

    def advance(self, state: Int[Array, ""], token: Int[Array, ""]) -> Int[Array, ""]:
        del token
        return state + 1
