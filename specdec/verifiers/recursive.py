"""Recursive verification: a position's guesses judged in turn, level by level."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.randomness import draw
from specdec.core.residuals import take_position
from specdec.types import Draft, Purpose, RandomSource, Verdict
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.tree import (
    Judged,
    Siblings,
    TreeVerifier,
    first_accepted,
    judge,
    siblings_after,
    start_of,
    tree_verdict,
)

_POINT_MASSES = PointMassVerifier()


@dataclasses.dataclass(frozen=True)
class RecursiveVerifier(TreeVerifier):
    """Walks down a tree; at each node the siblings that follow it are judged in order.

    The first sibling x_1 is accepted with min(1, p(x_1) / q_1(x_1)). If it is rejected, p becomes
    p_2 = norm(max(p - q_1, 0)), and the second is accepted with min(1, p_2(x_2) / q_2(x_2)), and
    so on. q_k is what sibling k was drawn from given the earlier ones. So they may be independent
    draws, draws without replacement (q_k is q without the earlier tokens, renormalised) or those of
    several drafts. At the first node where none is accepted, the last residual gives the token; at
    a leaf, p. The output follows the target's distribution exactly: whatever x_1..x_{k-1} are,
    accepting x_k or drawing from what is left is a draw from p_k. On a chain it is token
    verification.

    Source: Miao et al. 2024, "SpecInfer" (multi-step speculative sampling); without
    replacement: Jeon et al. 2024, "Recursive Speculative Decoding", and Chen et al. 2024,
    "Sequoia".

    Notation: p is ``target``, q is ``draft.probs``. Point-mass drafts go to
    :class:`PointMassVerifier`, whose outputs have the same distribution, in fewer steps. At
    temperature 0 the target's own tokens are followed down the tree. One random number a level
    decides between the siblings.
    """

    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        if draft.probs is None:
            return _POINT_MASSES(random, target, draft)
        depth = draft.topology.depth
        uniforms = random.uniforms(Purpose.ACCEPTANCE, depth)

        def level(i, carry):
            path, going, distribution, probs, examined = carry
            siblings = siblings_after(draft, path.end)
            judged = self._judge(distribution, draft, siblings)
            uniform = jax.lax.dynamic_index_in_dim(uniforms, i, axis=1, keepdims=False)
            at, found = first_accepted(judged.survival, uniform)
            # Siblings that do not exist are accepted with 0: at a leaf nothing is.
            looked, found = going & siblings.exist[:, 0], going & found
            path = path.then(take_position(siblings.guesses, at), found)
            after = jnp.where(found[:, None], take_position(target, path.end), judged.residual)
            distribution = jnp.where(looked[:, None], after, distribution)
            probs = jax.lax.dynamic_update_index_in_dim(probs, judged.acceptance, i, axis=1)
            return path, found, distribution, probs, examined + looked

        going = jnp.ones((len(draft.tokens),), bool)
        path, _, distribution, probs, examined = jax.lax.fori_loop(
            0, depth, level,
            (start_of(draft), going, target[:, 0], jnp.zeros((len(going), depth)), 0 * going),
        )  # fmt: skip
        final = draw(distribution, random.uniforms(Purpose.FINAL, 1)[:, 0])
        return tree_verdict(draft, path, final, probs, examined)

    def _judge(self, distribution: Float[Array, "b v"], draft: Draft, siblings: Siblings) -> Judged:
        return judge(distribution, draft, siblings)
