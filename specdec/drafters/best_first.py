"""A draft model that grows the likeliest nodes first; the tree's shape is found in each block."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.standardize import standardize
from specdec.core.topology import TracedTopology
from specdec.drafters.base import DraftParams
from specdec.drafters.growing import likeliest
from specdec.drafters.guessing import adjusted, known, likeliest_ids
from specdec.drafters.model_tree import ModelTreeState, TreeOfModel
from specdec.models.base import Model
from specdec.rules.base import advanced, taken
from specdec.types import (
    Distribution,
    Draft,
    PointMass,
    RandomSource,
    RuleStates,
)


@dataclasses.dataclass(frozen=True)
class BestFirstDrafter(TreeOfModel):
    """The ``nodes`` likeliest guesses, a node's score being the draft's probability of its path.

    Level by level, the K likeliest nodes so far are fed, and K guesses follow each. Of all guesses
    the likeliest are kept. A node never scores more than its parent, so parents are kept with
    their children. Guesses are point masses: which ones are made does not depend on any random
    number, so a verifier of point masses is lossless. Sizes are static, parents are traced.

    Source: Li et al. 2024, "EAGLE-2", section 4 (expansion and reranking by confidence).

    Notation: N is ``nodes``, D ``depth``, K ``siblings``. At temperature 0 the score is from the
    distribution at temperature 1.
    """

    model: Model
    nodes: int
    depth: int
    siblings: int
    catch_up: int = 2

    @property
    def topology(self) -> TracedTopology:
        """Sizes of the trees; a draft has the parents."""
        nowhere = jnp.zeros((0, self.nodes), jnp.int32)
        return TracedTopology(nowhere, self.depth, self.siblings)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.nodes, (self.depth - 1) * self.siblings

    def propose(
        self, params: DraftParams, state: ModelTreeState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, ModelTreeState]:
        del random
        model, weights, k = self.model, params.weights, self.siblings
        batch = len(state.fed)
        logits, cache = self.feed_pending(params, state)
        nothing = jnp.zeros((batch, 0), jnp.int32)
        following = params.sampling.rules
        # Of the tokens whose children are the newest guesses.
        states = jax.tree.map(lambda leaf: leaf[:, None], known(params, rules))
        # All guesses made: token, score, parent and index among those that are fed.
        tokens, score = self._children(params, logits, jnp.zeros((batch, 1)), states)
        parents = jnp.full((batch, k), -1, jnp.int32)
        indices = jnp.full((batch, k), -1, jnp.int32)
        fed_parents, newest = nothing, jnp.tile(jnp.arange(k), (batch, 1))
        for level in range(self.depth - 1):
            # The likeliest of the newest guesses are fed.
            best = jax.lax.top_k(jnp.take_along_axis(score, newest, axis=1), k)[1]
            fed = jnp.take_along_axis(newest, best, axis=1)
            above = jnp.take_along_axis(parents, fed, axis=1)
            above = jnp.where(
                above >= 0, jnp.take_along_axis(indices, jnp.maximum(above, 0), axis=1), -1
            )
            fed_parents = jnp.concatenate([fed_parents, above], axis=1)
            is_fed = fed[:, None] == jnp.arange(tokens.shape[1])[:, None]
            index = level * k + jnp.argmax(is_fed, axis=2)
            indices = jnp.where(jnp.any(is_fed, axis=2), index, indices)
            shape = TracedTopology(fed_parents, self.depth - 1, k)
            guesses = jnp.take_along_axis(tokens, fed, axis=1)
            hidden, cache = model.extend(
                weights, state.encoded, cache, guesses, shape, after=level * k
            )
            own = jnp.take_along_axis(score, fed, axis=1)
            states = advanced(following, taken(states, best // k), guesses)
            more, their = self._children(params, model.logits(weights, hidden), own, states)
            newest = tokens.shape[1] + jnp.tile(jnp.arange(k * k), (batch, 1))
            tokens = jnp.concatenate([tokens, more], axis=1)
            score = jnp.concatenate([score, their], axis=1)
            parents = jnp.concatenate([parents, jnp.repeat(fed, k, axis=1)], axis=1)
            indices = jnp.pad(indices, ((0, 0), (0, k * k)), constant_values=-1)
        # Among equals the earlier ones, so parents before children.
        kept = jnp.sort(jax.lax.top_k(score, self.nodes)[1], axis=1)
        tokens, parents, indices = (
            jnp.take_along_axis(each, kept, axis=1) for each in (tokens, parents, indices)
        )
        # Parents, too, are counted among those that are kept.
        parents = jnp.where(parents >= 0, jnp.sum(kept[:, None] < parents[..., None], axis=2), -1)
        topology = TracedTopology(parents, self.depth, k)
        return Draft(tokens, None, topology), dataclasses.replace(state, cache=cache, fed=indices)

    def _children(
        self, params: DraftParams, logits: Float[Array, "b m v"], score: Float[Array, "b m"],
        states: RuleStates,
    ) -> tuple[Int[Array, "b mk"], Float[Array, "b mk"]]:  # fmt: skip
        """K guesses after each of m nodes, and their scores: the logarithm of their path."""
        model, flat = self.model, (len(score), -1)
        logits = adjusted(model, params, logits, states)
        tokens = likeliest(logits, self.siblings)
        log_q = jax.nn.log_softmax(logits)
        if not params.sampling.greedy:
            distribution: Distribution = standardize(logits, params.sampling)
            assert not isinstance(distribution, PointMass)
            log_q = jnp.log(jnp.maximum(distribution, jnp.finfo(jnp.float32).tiny))
        own = jnp.minimum(jnp.take_along_axis(log_q, tokens, axis=2), 0.0)
        tokens = tokens.reshape(flat)
        tokens = likeliest_ids(model, params, tokens)
        return tokens, (score[..., None] + own).reshape(flat)
