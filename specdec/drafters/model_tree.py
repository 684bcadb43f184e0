"""A draft model that grows a tree: one call a level, several guesses for one position."""

from __future__ import annotations

import abc
import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.growing import grow_draft
from specdec.drafters.pending import Pending
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Draft,
    Encoded,
    Prompt,
    RandomSource,
    RuleStates,
    Start,
    Verdict,
)


@pytree
class ModelTreeState:
    """A draft model between blocks of trees."""

    encoded: Encoded  # The draft model's view of the inputs.
    # Holds every emitted token but the pending ones; within a block also the nodes that were fed.
    cache: Cache
    pending: Pending
    fed: Int[Array, "b n"]  # Each guess's index among those that were fed in this block, or -1.


def fed_indices(tree: Topology) -> Int[np.ndarray, " n"]:
    """Each node's index among those with children, which alone are fed; or -1."""
    with_children = sorted({parent for parent in tree.parents if parent >= 0})
    indices = np.full(tree.size, -1, np.int32)
    indices[with_children] = np.arange(len(with_children))
    return indices


def inner_nodes(tree: Topology) -> Topology:
    """The nodes with children, as a tree of their own."""
    indices = fed_indices(tree)
    kept = (parent for parent, index in zip(tree.parents, indices, strict=True) if index >= 0)
    return Topology(tuple(int(indices[parent]) if parent >= 0 else -1 for parent in kept))


class TreeOfModel(abc.ABC):
    """Base of draft models that grow a tree in each block."""

    model: Model  # The draft model.
    # P: tokens that the cache may lack after a block: the last guess, never fed, and the newest.
    # Where other drafts guess too, all that a block emits.
    catch_up: int

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Guesses of a block, and how many of them are fed."""

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> ModelTreeState:
        """See :class:`specdec.drafters.base.Drafter`."""
        nodes, num_fed = self.sizes
        capacity = max_len + num_fed + 1 + self.catch_up
        start = self.model.start(params.weights, prompt, capacity, target.encoded)
        pending = Pending.of(start.last_token, self.catch_up)
        fed = jnp.full((prompt.batch_size, nodes), -1, jnp.int32)
        return ModelTreeState(start.encoded, start.cache, pending, fed)

    def feed_pending(
        self, params: DraftParams, state: ModelTreeState
    ) -> tuple[Float[Array, "b 1 v"], Cache]:
        """Feeds tokens that the cache lacks: logits after the newest, and the cache with all."""
        model, pending = self.model, state.pending
        fed = model.extend(params.weights, state.encoded, state.cache, pending.tokens)
        newest, cache = pending.feed(fed, model.commit)
        return model.logits(params.weights, newest), cache

    def observe(
        self, state: ModelTreeState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> ModelTreeState:
        """Keeps the accepted guesses that were fed; tokens emitted behind them are pending.

        Of the accepted guesses only the last can be one that was not fed, for inner nodes are.
        """
        del states
        accepted = jnp.arange(verdict.path.shape[1] - 1) < verdict.num_accepted[:, None]
        nodes = jnp.where(accepted, verdict.path[:, 1:] - 1, 0)
        indices = jnp.where(accepted, jnp.take_along_axis(state.fed, nodes, axis=1), -1)
        kept = jnp.where(verdict.num_emitted > 0, jnp.sum(indices >= 0, axis=1), 0)
        pending, forgotten = state.pending.observe(verdict, kept)
        cache = self.model.commit(state.cache, indices, kept - forgotten)
        return dataclasses.replace(state, cache=cache, pending=pending)


@dataclasses.dataclass(frozen=True)
class ModelTreeDrafter(TreeOfModel):
    """Draws a tree of a fixed shape from a model, one call a level.

    The children of a node are drawn from the distribution after it: without replacement (q of a
    sibling is then that distribution without the earlier ones, renormalised), or independently, so
    that they may repeat. At temperature 0 they are its likeliest tokens, as point masses. Only
    nodes with children are fed. Parameters are :class:`~specdec.drafters.base.DraftParams` ones.

    Source: Miao et al. 2024, "SpecInfer", section 3 (expansion-based trees); Jeon et al. 2024,
    "Recursive Speculative Decoding", for siblings without replacement.
    """

    model: Model
    topology: Topology  # Nodes in the order of levels.
    independent: bool = False  # Whether siblings are drawn with replacement.
    catch_up: int = 2

    @property
    def sizes(self) -> tuple[int, int]:
        return self.topology.size, inner_nodes(self.topology).size

    def propose(
        self, params: DraftParams, state: ModelTreeState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, ModelTreeState]:
        model, weights, tree, batch = self.model, params.weights, self.topology, len(state.fed)
        inner, fed = inner_nodes(tree), fed_indices(tree)
        logits, cache = self.feed_pending(params, state)

        def logits_after(nodes, guesses):
            nonlocal cache
            if guesses is None:
                return logits
            hidden, cache = model.extend(
                weights, state.encoded, cache, guesses, inner, after=int(fed[nodes[0]])
            )
            return model.logits(weights, hidden)

        draft = grow_draft(
            model, params, tree, batch, logits_after, random, rules, independent=self.independent
        )
        indices = jnp.broadcast_to(jnp.asarray(fed), (batch, tree.size))
        return draft, dataclasses.replace(state, cache=cache, fed=indices)
