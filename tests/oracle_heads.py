"""Toy heads on the toy target's hidden state, which is a row's number in its table."""

import dataclasses

import jax.numpy as jnp

from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.topology import Topology


@dataclasses.dataclass(frozen=True)
class ToyHeads:
    """Head i reads row 3 h + 7 i of a table [C, V] of logits; h is the hidden state."""

    count: int = 3
    width: int = 1

    def logits(self, params, hidden):
        rows = 3 * hidden.astype(jnp.int32) + 7 * (1 + jnp.arange(self.count))
        return params[rows % len(params)]


def heads_chain(model, gamma):
    """A drafter by gamma, as those of models."""
    del model
    return OffsetHeadsDrafter(ToyHeads(), Topology.chain(gamma))


def heads_tree(model, tree, independent=False):
    """A drafter of a tree, as those of models."""
    del model
    return OffsetHeadsDrafter(ToyHeads(), tree, independent)
