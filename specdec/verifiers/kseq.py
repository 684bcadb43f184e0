"""K-SEQ: independent guesses of one position, each judged by the same test (SpecTr)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.reductions import sum_last
from specdec.core.residuals import take_position
from specdec.types import Draft, RandomSource, Verdict
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.tree import Judged, Siblings, tokens_of

_HALVINGS = 24  # rho has as many bits as float32.


@dataclasses.dataclass(frozen=True)
class KSeqVerifier(RecursiveVerifier):
    """Accepts the first of K independent siblings that passes min(1, p(x) / (rho q(x))).

    With beta(rho) = sum_x min(q(x), p(x) / rho), rho in [1, K] is where 1 - (1 - beta)^K =
    rho beta. If none passes, the token comes from norm(p - rho min(q, p / rho)). The output follows
    the target's distribution exactly. A node with fewer guesses has a smaller K; with K = 1 this is
    token verification.

    Source: Sun et al. 2023, "SpecTr: Fast Speculative Decoding via Optimal Transport" (K-SEQ).

    Raises:
      ValueError: siblings are no independent draws from one q.
    """

    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        if draft.probs is None or not self._independent(draft):
            raise ValueError(
                "KSeqVerifier needs siblings that are drawn independently from one distribution: "
                "specdec.Tree(..., independent=True) at a draft temperature above 0. "
                "RecursiveVerifier takes all others."
            )
        return super().sampled(random, target, draft)

    def _independent(self, draft: Draft) -> bool:
        return draft.independent or draft.topology.siblings == 1

    def _judge(self, distribution: Float[Array, "b v"], draft: Draft, siblings: Siblings) -> Judged:
        assert draft.probs is not None
        count = jnp.sum(siblings.exist, axis=1)
        q = take_position(draft.probs, siblings.guesses[:, 0])
        rho = self._rho(distribution, q, count)
        overlap = jnp.minimum(q, distribution / rho[:, None])
        beta = sum_last(overlap)
        accepted = 1 - (1 - beta) ** count
        factor = jnp.where(beta > 0, accepted / jnp.where(beta > 0, beta, 1.0), 0.0)
        # Where p / rho is the smaller, nothing is left: c = rho at the solution.
        rest = jnp.maximum(distribution - factor[:, None] * q, 0.0)
        weights = jnp.where(distribution <= rho[:, None] * q, 0.0, rest)
        mass = sum_last(weights)[:, None]
        residual = jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1.0), distribution)
        tokens = tokens_of(draft, siblings)
        p_x, q_x = (jnp.take_along_axis(each, tokens, axis=1) for each in (distribution, q))
        ratio = jnp.where(q_x > 0, p_x / jnp.where(q_x > 0, rho[:, None] * q_x, 1.0), 0.0)
        passes = jnp.where(siblings.exist, jnp.minimum(1.0, ratio), 0.0)
        # Without guesses there is nothing to subtract, and the distribution is p.
        residual = jnp.where((count > 0)[:, None], residual, distribution)
        return Judged(jnp.cumprod(1 - passes, axis=1), residual, accepted)

    def _rho(
        self, p: Float[Array, "b v"], q: Float[Array, "b v"], count: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        """Finds rho by bisection, from above: the residual stays non-negative."""

        def halve(_, bounds):
            low, high = bounds
            rho = (low + high) / 2
            # No `sum_last`: XLA on CPU makes this loop a function, and crashes at a barrier in it.
            beta = jnp.sum(jnp.minimum(q, p / rho[:, None]), axis=-1)
            enough = 1 - (1 - beta) ** count <= rho * beta
            return jnp.where(enough, low, rho), jnp.where(enough, rho, high)

        most = jnp.maximum(count, 1).astype(jnp.float32)
        return jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.ones_like(most), most))[1]
