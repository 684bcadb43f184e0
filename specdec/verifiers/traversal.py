"""Traversal verification: a tree is judged from its leaves to its root."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.randomness import draw
from specdec.core.reductions import sum_last
from specdec.core.residuals import guess_counts, take_position, write_at
from specdec.types import Draft, Purpose, RandomSource, Verdict
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.tree import TreeVerifier, levels, path_to, tree_verdict

_POINT_MASSES = PointMassVerifier()


@pytree
class _Walk:
    """State of the tour so far."""

    weights: Float[Array, "b d1"]  # w of the node at each level of the current path.
    distributions: Float[Array, "b d1 v"]  # r of it.
    survival: Float[Array, " b"]  # Probability that no node left so far is accepted.
    kept: Int[Array, " b"]  # The accepted guess, or -1.


@dataclasses.dataclass(frozen=True)
class TraversalVerifier(TreeVerifier):
    """Accepts whole paths, the leftmost leaf's first; a path is kept even behind a doubtful guess.

    Every node has a weight w and a distribution r of its next token. The root has w = 1 and r = p.
    When guess x is reached from its parent (w, r), it gets w_x = min(1, w r(x) / q(x)) and r_x = p
    after x, and its subtree is judged. If nothing in there is accepted, x itself is, with w_x as it
    is then. If x is rejected too, its parent gets, with A = sum_x max(w r(x) - q(x), 0),

        r = norm(max(w r - q, 0)),    w = A / (A + 1 - w),

    and its next guess is reached. The root is accepted always. The token after the accepted node
    comes from its r. q is what the guess was drawn from given its earlier siblings. The output
    follows the target's distribution exactly. On a chain this is block verification.

    Source: Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding";
    on a chain Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.

    Notation: p is ``target``, q is ``draft.probs``. Point-mass drafts go to
    :class:`PointMassVerifier`: from their leaves on nothing more can be kept. At temperature 0 the
    target's own tokens are followed. One random number decides between all nodes. The acceptance
    probability that it reports is that of recursive verification along its path.
    """

    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        if draft.probs is None:
            return _POINT_MASSES(random, target, draft)
        batch, size = draft.tokens.shape
        levels_too = draft.topology.depth + 1
        left = 1 - random.uniforms(Purpose.ACCEPTANCE, 1)[:, 0]  # In (0, 1].
        tour = _tour(draft)
        begin = _Walk(
            jnp.ones((batch, levels_too)),
            jnp.broadcast_to(target[:, :1], (batch, levels_too, target.shape[-1])),
            jnp.ones((batch,)), jnp.full((batch,), -1),
        )  # fmt: skip

        def visit(i, walk):
            at = jnp.full((batch,), i)
            node, leaves = (take_position(each, at) for each in tour)
            return self._visit(target, draft, walk, node, leaves, left)

        walk = jax.lax.fori_loop(0, 2 * size, visit, begin)
        path = path_to(draft, walk.kept)
        distribution = take_position(walk.distributions, path.length)
        final = draw(distribution, random.uniforms(Purpose.FINAL, 1)[:, 0])
        return tree_verdict(draft, path, final, *levels(target, draft, path))

    def _visit(
        self, target: Float[Array, "b n1 v"], draft: Draft, walk: _Walk, node: Int[Array, " b"],
        leaves: Bool[Array, " b"], left: Float[Array, " b"],
    ) -> _Walk:  # fmt: skip
        """Reaches a guess, or leaves it, which accepts it or tells its parent."""
        depths = jnp.broadcast_to(jnp.asarray(draft.topology.depths()), draft.tokens.shape)
        above = take_position(depths, node)  # The parent's level; the root's is 0.
        counts = (node < guess_counts(draft)) & (walk.kept < 0)
        w, r = take_position(walk.weights, above), take_position(walk.distributions, above)
        assert draft.probs is not None
        x, q = take_position(draft.tokens, node), take_position(draft.probs, node)
        own = take_position(walk.weights, above + 1)
        survival = jnp.where(leaves & counts, walk.survival * (1 - own), walk.survival)
        accepted = leaves & counts & (survival < left)
        rejected_w, rejected_r = self._rejected(w, r, q)
        new_w = jnp.where(leaves, rejected_w, self._reached(w, r, q, x))
        new_r = jnp.where(leaves[:, None], rejected_r, take_position(target, node + 1))
        level = above + jnp.where(leaves, 0, 1)
        write = counts & ~accepted
        new_w = jnp.where(write, new_w, take_position(walk.weights, level))
        new_r = jnp.where(write[:, None], new_r, take_position(walk.distributions, level))
        return _Walk(
            write_at(walk.weights, new_w[:, None], level),
            write_at(walk.distributions, new_r[:, None], level),
            survival, jnp.where(accepted, node, walk.kept),
        )  # fmt: skip

    def _reached(
        self, w: Float[Array, " b"], r: Float[Array, "b v"], q: Float[Array, "b v"],
        x: Int[Array, " b"],
    ) -> Float[Array, " b"]:  # fmt: skip
        """The weight of guess x when it is reached; none where nothing was left to draw it from."""
        r_x, q_x = (jnp.take_along_axis(each, x[:, None], axis=1)[:, 0] for each in (r, q))
        return jnp.where(q_x > 0, jnp.minimum(1.0, w * r_x / jnp.where(q_x > 0, q_x, 1.0)), 0.0)

    def _rejected(
        self, w: Float[Array, " b"], r: Float[Array, "b v"], q: Float[Array, "b v"]
    ) -> tuple[Float[Array, " b"], Float[Array, "b v"]]:
        """The weight and the distribution of a guess's parent when the guess is rejected."""
        weights = jnp.maximum(w[:, None] * r - q, 0.0)
        mass = sum_last(weights)
        spare = mass + 1 - w
        # 0 / 0 where w = 1 and r = q: the guess is always accepted.
        after = jnp.where(spare > 0, mass / jnp.where(spare > 0, spare, 1.0), 1.0)
        distribution = weights / jnp.where(mass > 0, mass, 1.0)[:, None]
        return after, jnp.where((mass > 0)[:, None], distribution, r)


def _tour(draft: Draft) -> tuple[Int[Array, "b visits"], Bool[Array, "b visits"]]:
    """The order in which guesses are visited, each when it is reached and when it is left."""
    batch, size = draft.tokens.shape
    family = jnp.broadcast_to(jnp.asarray(draft.topology.ancestors()), (batch, size, size))
    parents = jnp.broadcast_to(jnp.asarray(draft.topology.parents), (batch, size))
    descendants = jnp.sum(family, axis=1)  # Itself included.
    earlier = jnp.tril(parents[:, :, None] == parents[:, None, :], -1)
    before = jnp.sum(jnp.where(earlier, 2 * descendants[:, None], 0), axis=2)
    reached = jnp.sum(jnp.where(family, 1 + before[:, None], 0), axis=2) - 1
    times = jnp.concatenate([reached, reached + 2 * descendants - 1], axis=1)
    order = jnp.argsort(times, axis=1)
    return order % size, order >= size
