"""Typical acceptance: guesses that are likely enough, for an output that is not the target's."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.fields import PositiveShare, checked
from specdec.core.randomness import draw
from specdec.core.reductions import sum_last
from specdec.core.residuals import guess_counts, take, take_position
from specdec.types import Draft, Purpose, RandomSource, Verdict
from specdec.verifiers.tree import TreeVerifier, levels, path_to, tree_verdict


@checked()
class TypicalVerifier(TreeVerifier):
    """Accepts x if p(x) > min(epsilon, delta exp(-H(p))), whatever it was drawn from. NOT lossless.

    H is the entropy of p in nats. The deepest guess whose ancestors all pass is kept, the first
    among equals, and the token after it is drawn from p. At temperature 0 the target's own tokens
    are followed, which is lossless.

    Source: Cai et al. 2024, "Medusa", section 2.3.1. (There the token before the draft is drawn
    greedily; here it is what the last block emitted.)

    Attributes:
      epsilon, delta: in (0, 1]; those of the source.

    Raises:
      ValueError: epsilon or delta outside (0, 1].
    """

    epsilon: PositiveShare = 0.3
    delta: PositiveShare = 0.09
    lossless = False

    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        batch, size = draft.tokens.shape
        topology = draft.topology
        parents = jnp.broadcast_to(jnp.asarray(topology.parents) + 1, (batch, size))
        p = take(jnp.take_along_axis(target, parents[..., None], axis=1), draft.tokens)
        least = jnp.take_along_axis(self.least(target), parents, axis=1)
        passes = (p > least) & (jnp.arange(size) < guess_counts(draft)[:, None])
        family = jnp.asarray(topology.ancestors())
        accepted = ~jnp.any(family & ~passes[:, None], axis=2)
        depths = jnp.broadcast_to(jnp.asarray(topology.depths()), (batch, size))
        best = jnp.argmax(jnp.where(accepted, depths + 1, 0), axis=1)
        kept = jnp.where(jnp.any(accepted, axis=1), best, -1)
        path = path_to(draft, kept)
        distribution = take_position(target, path.end)
        final = draw(distribution, random.uniforms(Purpose.FINAL, 1)[:, 0])
        return tree_verdict(draft, path, final, *levels(target, draft, path))

    def least(self, target: Float[Array, "*b v"]) -> Float[Array, "*b"]:
        """The probability that a guess has to exceed."""
        entropy = -sum_last(jnp.where(target > 0, target * jnp.log(target), 0.0))
        return jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
