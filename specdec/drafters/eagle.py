"""An EAGLE-style draft: a layer that runs autoregressively on the target's hidden states."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.pytrees import pytree
from specdec.core.residuals import take_position
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams, StateDraft, prefix_states
from specdec.drafters.growing import grow
from specdec.drafters.guessing import adjusted, known, likeliest_ids, weights_of
from specdec.drafters.model_tree import fed_indices, inner_nodes
from specdec.drafters.pending import Pending
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
class EagleState:
    """An EAGLE-style drafter between blocks."""

    encoded: Encoded  # The draft's view of the inputs.
    cache: Cache  # Holds every emitted token but the pending ones, with the target's states.
    pending: Pending  # All that the last block emitted, with the target's states.


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

    layer: StateDraft
    topology: Topology  # Nodes in the order of levels.
    independent: bool = False  # Whether siblings are drawn with replacement.

    def init(self, params: DraftParams, prompt: Prompt, max_len: int, target: Start) -> EagleState:
        (batch, size), capacity = prompt.prefix.shape, self.topology.depth + 1
        most = size - 1 + max_len + capacity + max(capacity, inner_nodes(self.topology).size)
        encoded, cache = self.layer.start(params.weights, batch, most, target.encoded)
        states = prefix_states(target)
        if size > 1:
            before = jnp.asarray(prompt.prefix[:, :-1])
            _, cache = self.layer.extend(params.weights, encoded, cache, before, states[:, :-1])
            cache = self.layer.commit(cache, None, jnp.asarray(prompt.prefix_lengths - 1))
        newest = take_position(states, jnp.asarray(prompt.prefix_lengths - 1))
        pending = Pending.of(jnp.asarray(prompt.last_token), capacity, newest)
        return EagleState(encoded, cache, pending)

    def propose(
        self, params: DraftParams, state: EagleState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, EagleState]:
        layer, weights, tree = self.layer, params.weights, self.topology
        batch, greedy = len(state.pending.count), params.sampling.greedy
        uniforms = None if greedy else random.uniforms(Purpose.PROPOSAL, tree.size)
        inner, fed = inner_nodes(tree), fed_indices(tree)
        pending = state.pending
        assert pending.states is not None
        pairs = layer.extend(weights, state.encoded, state.cache, pending.tokens, pending.states)
        # The draft's own states: of the newest token, then of each node that was fed.
        own, cache = pending.feed(pairs, layer.commit)

        def ids(tokens):
            return likeliest_ids(layer, params, tokens) if greedy else tokens

        def distributions_after(nodes, tokens, states):
            nonlocal own, cache
            found = own
            if nodes[0] >= 0:
                parents = [1 + inner.parents[fed[node]] for node in nodes]
                found, cache = layer.extend(
                    weights, state.encoded, cache, ids(tokens[:, nodes]), own[:, parents],
                    inner, after=int(fed[nodes[0]]),
                )  # fmt: skip
                own = jnp.concatenate([own, found], axis=1)
            logits = adjusted(layer, params, layer.logits(weights, found), states)
            return weights_of(layer, params, logits)

        tokens, probs = grow(
            tree, batch, distributions_after, uniforms, self.independent,
            params.sampling.rules, known(params, rules),
        )  # fmt: skip
        draft = Draft(ids(tokens), probs, tree, independent=self.independent and not greedy)
        return draft, dataclasses.replace(state, cache=cache)

    def observe(
        self, state: EagleState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> EagleState:
        none = jnp.zeros_like(verdict.num_emitted)  # Guesses' entries are dead after their block.
        pending, forgotten = state.pending.observe(verdict, none, states)
        cache = self.layer.commit(state.cache, None, -forgotten)
        return EagleState(state.encoded, cache, pending)
