"""A rule that makes the probabilities that other rules left sum to 1."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.rules.base import OwnRule, RowStart


@dataclasses.dataclass(frozen=True)
class Renormalized(OwnRule):
    """Logits become log-probabilities, which sum to 1: the scores of beams are made of them.

    Put it behind all other rules. It changes no token of greedy and sampled decoding.

    Source: transformers' ``renormalize_logits``, as most Marians set it.
    """

    def init(self, row: RowStart) -> tuple[()]:
        del row
        return ()

    def allow(self, state: tuple[()], logits: Float[Array, " v"]) -> Float[Array, " v"]:
        # Where nothing is allowed, there is nothing to share.
        return jnp.where(jnp.max(logits) == -jnp.inf, logits, jax.nn.log_softmax(logits))

    def advance(self, state: tuple[()], token: Array) -> tuple[()]:
        del token
        return state
