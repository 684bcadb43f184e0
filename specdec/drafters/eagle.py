"""An EAGLE-style draft: a layer that runs autoregressively on the target's hidden states."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.residuals import take_position
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams, prefix_states
from specdec.drafters.growing import grow_draft
from specdec.drafters.model_tree import fed_indices, inner_nodes
from specdec.drafters.pending import Pending, PendingState
from specdec.models import filler
from specdec.models.eagle.model import EagleModel
from specdec.types import Draft, Prompt, RandomSource, RuleStates, Start, Verdict


@dataclasses.dataclass(frozen=True)
class EagleDrafter:
    """A chain or a tree of guesses by a layer on the target's hidden states, one call a level.

    The first call of a block feeds all that the last block emitted, with the target's true states:
    they replace what the draft made itself of accepted guesses. A guess is fed with the draft's own
    state of its parent. A prefix is fed before the first block; its first token was drawn from no
    state, and zeros stand for it.
    Siblings are drawn as by :class:`~specdec.drafters.model_tree.ModelTreeDrafter`. Parameters are
    :class:`~specdec.drafters.base.DraftParams` ones of the layer.

    Source: Li et al. 2024, "EAGLE", section 4.1.
    """

    layer: EagleModel
    topology: Topology  # Nodes in the order of levels.
    independent: bool = False  # Whether siblings are drawn with replacement.

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> PendingState:
        (batch, size), capacity = prompt.prefix.shape, self.topology.depth + 1
        most = (
            filler.shared(size - 1)
            + max_len
            + capacity
            + max(capacity, inner_nodes(self.topology).size)
        )
        encoded, cache = self.layer.start(params.weights, batch, most, target.encoded)
        states = prefix_states(target)
        if size > 1:
            before = jnp.asarray(prompt.prefix[:, :-1])
            _, cache = self.layer.extend(params.weights, encoded, cache, before, states[:, :-1])
            cache = self.layer.commit(cache, None, jnp.asarray(prompt.prefix_lengths - 1))
        newest = take_position(states, jnp.asarray(prompt.prefix_lengths - 1))
        pending = Pending.of(jnp.asarray(prompt.last_token), capacity, newest)
        return PendingState(encoded, cache, pending)

    def propose(
        self, params: DraftParams, state: PendingState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, PendingState]:
        layer, weights, tree, pending = self.layer, params.weights, self.topology, state.pending
        inner, fed = inner_nodes(tree), fed_indices(tree)
        assert pending.states is not None
        pairs = layer.extend(weights, state.encoded, state.cache, pending.tokens, pending.states)
        # The draft's own states: of the newest token, then of each node that was fed.
        own, cache = pending.feed(pairs, layer.commit)

        def logits_after(nodes, guesses):
            nonlocal own, cache
            if guesses is None:
                return layer.logits(weights, own)
            parents = [1 + inner.parents[fed[node]] for node in nodes]
            found, cache = layer.extend(
                weights, state.encoded, cache, guesses, own[:, parents], inner,
                after=int(fed[nodes[0]]),
            )  # fmt: skip
            own = jnp.concatenate([own, found], axis=1)
            return layer.logits(weights, found)

        draft = grow_draft(
            layer, params, tree, len(pending.count), logits_after, random, rules,
            independent=self.independent,
        )  # fmt: skip
        return draft, dataclasses.replace(state, cache=cache)

    def observe(
        self, state: PendingState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> PendingState:
        return state.observe(verdict, states, self.layer.commit)
