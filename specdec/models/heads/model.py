"""Heads with their target's logits."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.pytrees import pytree
from specdec.models import filler
from specdec.models.heads.config import HeadsConfig
from specdec.models.transformer.model import TransformerModel
from specdec.types import Distribution, Params


@pytree
class HeadsParams:
    """Parameters of heads, and the target's packed ones, which they share."""

    heads: Params
    target: Params


@dataclasses.dataclass(frozen=True)
class TargetHeads:
    """Heads on a target: a guess's logits are the target's logits of its head's output."""

    target: TransformerModel
    config: HeadsConfig

    @property
    def count(self) -> int:
        """K, the most guesses in a row."""
        return self.config.count

    def logits(self, params: HeadsParams, hidden: Float[Array, "b d"]) -> Float[Array, "b k v"]:
        """float32 logits of each head, by one read of their kernel.

        Args:
          hidden: the target's last hidden state from which the newest token was drawn. Head 1 is
            for what follows that token.
        """
        # Flax takes long to import, and all other drafts decode without it.
        from specdec.models.heads.network import HeadsNetwork

        more = filler.amount(len(hidden), 1)
        if more:
            hidden = filler.filled(hidden[:, None], more)
        states = HeadsNetwork(self.config).apply({"params": params.heads}, hidden)
        states = jnp.asarray(states, self.target.dtype)
        if more:
            states = filler.without(states, more)[:, 0]
        return self.target.logits(params.target, states)

    def over_vocabulary(self, params: HeadsParams, distribution: Distribution) -> Distribution:
        return self.target.over_vocabulary(params.target, distribution)
