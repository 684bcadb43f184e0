"""Growing a tree level by level from the distributions that follow its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.randomness import draw_from
from specdec.core.reductions import sum_last
from specdec.core.standardize import argmax
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.guessing import AnyDraft, adjusted, known, likeliest_ids, weights_of
from specdec.rules.base import Rules, advanced, at
from specdec.types import Draft, Purpose, RandomSource, RuleStates

# Guesses after each distribution.
Counts = Sequence[int] | np.ndarray
# (nodes, tokens [B, N] so far, the rules' states behind the nodes) -> [B, len(nodes), V]: what
# follows each of these nodes, as probabilities, or where the likeliest tokens are wanted as
# anything in their order. [-1] is the token before the tree.
LawsAfter = Callable[[Int[np.ndarray, " m"], Int[Array, "b n"], RuleStates], Float[Array, "b m v"]]
# (nodes, their token ids) -> [B, len(nodes), V], a model's logits after each; or [B, 1, V] where
# they are the same. The token before the tree is [-1], without an id.
LogitsAfter = Callable[[Int[np.ndarray, " m"], Int[Array, "b m"] | None], Float[Array, "b m v"]]


def grow_draft(
    model: AnyDraft, params: DraftParams, tree: Topology, batch: int, logits_after: LogitsAfter,
    random: RandomSource, rules: RuleStates, *, independent: bool,
) -> Draft:  # fmt: skip
    """A tree of guesses by a model's logits, which are asked for once a level.

    Args:
      rules: states of the target's rules before the tree.
      independent: whether siblings are drawn with replacement.
    """
    greedy, followed = params.sampling.greedy, params.sampling.rules
    uniforms = None if greedy else random.uniforms(Purpose.PROPOSAL, tree.size)

    def ids(tokens):
        """Ids of likeliest tokens; the model may generate only some of all tokens."""
        return likeliest_ids(model, params, tokens) if greedy else tokens

    def distributions_after(nodes, tokens, states):
        logits = logits_after(nodes, None if nodes[0] < 0 else ids(tokens[:, nodes]))
        if followed:  # They tell nodes of the same logits apart.
            logits = jnp.broadcast_to(logits, (batch, len(nodes), logits.shape[-1]))
        found = weights_of(model, params, adjusted(model, params, logits, states))
        return jnp.broadcast_to(found, (batch, len(nodes), found.shape[-1]))

    tokens, probs = grow(
        tree, batch, distributions_after, uniforms, independent, followed, known(params, rules)
    )
    return Draft(ids(tokens), probs, tree, independent=independent and not greedy)


def grow(
    tree: Topology, batch: int, distributions_after: LawsAfter, uniforms: Float[Array, "b n"] |
    None, independent: bool, rules: Rules = (), states: RuleStates = (),
) -> tuple[Int[Array, "b n"], Float[Array, "b n v"] | None]:  # fmt: skip
    """Tokens of a tree, and the q that each was drawn from given its earlier siblings.

    Args:
      tree: nodes in the order of levels. Distributions are asked for once a level, of nodes with
        children.
      uniforms: one in [0, 1) for each node; None for the likeliest tokens, which have no q.
      independent: whether siblings are drawn with replacement.
      rules, states: those that guesses follow, and their states before the tree.
    """
    parents, depths = np.array(tree.parents), tree.depths()
    tokens = jnp.zeros((batch, tree.size), jnp.int32)
    probs = []
    behind, known = jax.tree.map(lambda leaf: leaf[:, None], states), np.array([-1])
    for level in range(tree.depth):
        nodes = np.flatnonzero(depths == level)
        above, counts = np.unique(parents[nodes], return_counts=True)
        behind = at(behind, np.searchsorted(known, above))
        distributions = distributions_after(above, tokens, behind)
        if uniforms is None:
            drawn = likeliest_siblings(distributions, counts)
        else:
            drawn, q = draw_siblings(
                distributions, counts, uniforms[:, nodes], independent=independent
            )
            probs.append(q)
        tokens = tokens.at[:, nodes].set(drawn)
        of = np.searchsorted(above, parents[nodes])
        behind, known = advanced(rules, at(behind, of), drawn), nodes
    return tokens, jnp.concatenate(probs, axis=1) if probs else None


def draw_siblings(
    distributions: Float[Array, "b m v"], counts: Counts, uniforms: Float[Array, "b n"], *,
    independent: bool,
) -> tuple[Int[Array, "b n"], Float[Array, "b n v"]]:  # fmt: skip
    """counts[i] tokens from distribution i, those of one distribution next to each other, and each
    one's own q.

    Without replacement a drawn token's probability becomes 0, and the rest is renormalised. Where
    nothing is left q is 0 everywhere, and whatever token stands there is never accepted.
    """
    counts = np.asarray(counts)
    first = np.cumsum(counts) - counts
    tokens, probs = [], []
    for rank in range(max(counts)):
        more = np.flatnonzero(counts > rank)
        if len(more) < distributions.shape[1]:
            distributions, first, counts = distributions[:, more], first[more], counts[more]
        token = draw_from(distributions, uniforms[:, first + rank])
        tokens.append((first + rank, token))
        probs.append(distributions)
        if not independent and rank + 1 < max(counts):
            left = jnp.where(
                jnp.arange(distributions.shape[-1]) == token[..., None], 0.0, distributions
            )
            mass = sum_last(left)[..., None]
            distributions = left / jnp.where(mass > 0, mass, 1.0)
    order = np.argsort(np.concatenate([indices for indices, _ in tokens]))
    found = jnp.concatenate([token for _, token in tokens], axis=1)
    return found[:, order], jnp.concatenate(probs, axis=1)[:, order]


def likeliest_siblings(scores: Float[Array, "b m v"], counts: Counts) -> Int[Array, "b n"]:
    """The counts[i] best tokens by score i, best first."""
    ranked = likeliest(scores, max(counts))
    return jnp.concatenate([ranked[:, i, :count] for i, count in enumerate(counts)], axis=1)


def likeliest(scores: Float[Array, "*shape v"], count: int) -> Int[Array, "*shape k"]:
    """The best tokens, best first; among equals the lowest."""
    found = []
    for _ in range(count):
        found.append(argmax(scores))
        taken = jnp.arange(scores.shape[-1]) == found[-1][..., None]
        scores = jnp.where(taken, -jnp.inf, scores)
    return jnp.stack(found, axis=-1)
