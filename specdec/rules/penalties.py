"""Penalties for tokens that came before."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.fields import Real, checked
from specdec.core.pytrees import pytree, static_field
from specdec.rules.base import OpenRule, RowStart, RuleTarget
from specdec.types import AnyArray

_FLOAT = np.finfo(np.float32)
_LARGEST = float(_FLOAT.max)
_ABOVE_0 = "above 0 (1 changes nothing), a number of float32"
_Finite = Annotated[float, Real("a finite number of float32", -_LARGEST, _LARGEST)]


@checked(named=True)
class RepetitionPenalty:
    """Logits above 0 of each token that came before are divided by ``penalty``, others multiplied.

    "Before" is in the output, in what it was made to begin with (an encoder-decoder's start token,
    too), and in a decoder-only model's prompt. Not in what an encoder reads.

    Source: Keskar et al. 2019, "CTRL", section 4.1, for logits of both signs as transformers'
    ``repetition_penalty``.

    Attributes:
      penalty: above 0; 1 changes nothing, and less than 1 favours repetition.

    Raises:
      ValueError: it is not above 0.
    """

    penalty: Annotated[float, Real(_ABOVE_0, float(_FLOAT.tiny), _LARGEST)]

    def open(self, target: RuleTarget) -> OpenRule:
        return _Repetition(np.float32(self.penalty), target.vocab_size)


@pytree
class _Repetition:
    penalty: Float[AnyArray, ""]
    vocab_size: int = static_field()

    def init(self, row: RowStart) -> Bool[Array, " v"]:
        counts = jnp.arange(len(row.prefix)) < row.prefix_length
        tokens = jnp.where(counts, row.prefix, self.vocab_size)
        return jnp.zeros((self.vocab_size,), bool).at[tokens].set(True, mode="drop")

    def allow(self, state: Bool[Array, " v"], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        penalised = jnp.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return jnp.where(state, penalised, logits)

    def advance(self, state: Bool[Array, " v"], token: Int[Array, ""]) -> Bool[Array, " v"]:
        return state | (jnp.arange(self.vocab_size) == token)


@checked(named=True)
class PresencePenalty:
    """Takes ``penalty`` from the logit of each token that the output has.

    Source: vLLM's and OpenAI's ``presence_penalty``.

    Attributes:
      penalty: finite; less than 0 favours repetition.

    Raises:
      ValueError: it is not finite.
    """

    penalty: _Finite

    def open(self, target: RuleTarget) -> OpenRule:
        return _Counted(np.float32(self.penalty), np.float32(0), target.vocab_size)


@checked(named=True)
class FrequencyPenalty:
    """Takes ``penalty`` from a token's logit as often as the output has the token.

    Source: vLLM's and OpenAI's ``frequency_penalty``.

    Attributes:
      penalty: finite; less than 0 favours repetition.

    Raises:
      ValueError: it is not finite.
    """

    penalty: _Finite

    def open(self, target: RuleTarget) -> OpenRule:
        return _Counted(np.float32(0), np.float32(self.penalty), target.vocab_size)


@pytree
class _Counted:
    presence: Float[AnyArray, ""]
    frequency: Float[AnyArray, ""]
    vocab_size: int = static_field()

    def init(self, row: RowStart) -> Int[Array, " v"]:
        del row
        return jnp.zeros((self.vocab_size,), jnp.int32)

    def allow(self, state: Int[Array, " v"], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        return logits - self.frequency * state - self.presence * (state > 0)

    def advance(self, state: Int[Array, " v"], token: Int[Array, ""]) -> Int[Array, " v"]:
        return state + (jnp.arange(self.vocab_size) == token)
