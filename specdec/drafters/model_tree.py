"""A draft model that grows a tree: one call a level, several guesses for one position."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.growing import grow
from specdec.drafters.guessing import adjusted, known, likeliest_ids, weights_of
from specdec.drafters.pending import Pending
from specdec.models.base import Model
from specdec.types import (
    Cache,
    Draft,
    Encoded,
    Prompt,
    Purpose,
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


def start_tree(
    model: Model, params: DraftParams, prompt: Prompt, capacity: int, nodes: int, catch_up: int,
    target: Start,
) -> ModelTreeState:  # fmt: skip
    """The state before the first block.

    Args:
      capacity: tokens that outputs may have, and nodes that are fed in a block.
      nodes: N.
      catch_up: P, tokens that the cache may lack after a block.
    """
    start = model.start(params.weights, prompt, capacity + catch_up, target.encoded)
    pending = Pending.of(start.last_token, catch_up)
    fed = jnp.full((prompt.batch_size, nodes), -1, jnp.int32)
    return ModelTreeState(start.encoded, start.cache, pending, fed)


def feed_pending(
    model: Model, params: DraftParams, state: ModelTreeState
) -> tuple[Float[Array, "b 1 v"], Cache]:
    """Feeds what the cache lacks: logits after the newest token, and the cache with all of it."""
    fed = model.extend(params.weights, state.encoded, state.cache, state.pending.tokens)
    newest, cache = state.pending.feed(fed, model.commit)
    return model.logits(params.weights, newest), cache


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


def observe_tree(model: Model, state: ModelTreeState, verdict: Verdict) -> ModelTreeState:
    """Keeps the accepted guesses that were fed; what was emitted behind them is pending.

    Of the accepted guesses only the last can be one that was not fed, for inner nodes are.
    """
    accepted = jnp.arange(verdict.path.shape[1] - 1) < verdict.num_accepted[:, None]
    nodes = jnp.where(accepted, verdict.path[:, 1:] - 1, 0)
    indices = jnp.where(accepted, jnp.take_along_axis(state.fed, nodes, axis=1), -1)
    kept = jnp.where(verdict.num_emitted > 0, jnp.sum(indices >= 0, axis=1), 0)
    pending, forgotten = state.pending.observe(verdict, kept)
    cache = model.commit(state.cache, indices, kept - forgotten)
    return dataclasses.replace(state, cache=cache, pending=pending)


@dataclasses.dataclass(frozen=True)
class ModelTreeDrafter:
    """Draws a tree of a fixed shape from a model, one call a level.

    The children of a node are drawn from the distribution after it: without replacement (q of a
    sibling is then that distribution without the earlier ones, renormalised), or independently, so
    that they may repeat. At temperature 0 they are its likeliest tokens, as point masses. Only
    nodes with children are fed. Parameters are :class:`~specdec.drafters.base.DraftParams` ones.

    Source: Miao et al. 2024, "SpecInfer", section 3 (expansion-based trees); Jeon et al. 2024,
    "Recursive Speculative Decoding", for siblings without replacement.
    """

    model: Model  # The draft model.
    topology: Topology  # Nodes in the order of levels.
    independent: bool = False  # Whether siblings are drawn with replacement.
    # P: tokens that the cache may lack after a block: the last guess, never fed, and the newest.
    # Where other drafts guess too, all that a block emits.
    catch_up: int = 2

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> ModelTreeState:
        capacity = max_len + inner_nodes(self.topology).size + 1
        return start_tree(
            self.model, params, prompt, capacity, self.topology.size, self.catch_up, target
        )

    def propose(
        self, params: DraftParams, state: ModelTreeState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, ModelTreeState]:
        model, weights, tree = self.model, params.weights, self.topology
        batch, greedy = len(state.fed), params.sampling.greedy
        uniforms = None if greedy else random.uniforms(Purpose.PROPOSAL, tree.size)
        inner, fed = inner_nodes(tree), fed_indices(tree)
        caches = [state.cache]

        def ids(tokens):
            """Of likeliest tokens among those that the model generates, which may not be all."""
            return likeliest_ids(model, params, tokens) if greedy else tokens

        def distributions_after(nodes, tokens, states):
            if nodes[0] < 0:
                logits, cache = feed_pending(model, params, state)
            else:
                hidden, cache = model.extend(
                    weights, state.encoded, caches[-1], ids(tokens[:, nodes]), inner,
                    after=int(fed[nodes[0]]),
                )  # fmt: skip
                logits = model.logits(weights, hidden)
            caches.append(cache)
            logits = adjusted(model, params, logits, states)
            return weights_of(model, params, logits)

        tokens, probs = grow(
            tree, batch, distributions_after, uniforms, self.independent,
            params.sampling.rules, known(params, rules),
        )  # fmt: skip
        draft = Draft(ids(tokens), probs, tree, independent=self.independent and not greedy)
        indices = jnp.broadcast_to(jnp.asarray(fed), (batch, tree.size))
        return draft, dataclasses.replace(state, cache=caches[-1], fed=indices)

    def observe(
        self, state: ModelTreeState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> ModelTreeState:
        del states
        return observe_tree(self.model, state, verdict)
