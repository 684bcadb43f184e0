"""Forced acceptance: what a decode would cost at a given alpha, without models that agree."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.fields import Share, checked
from specdec.core.residuals import leading_true
from specdec.types import Distribution, Draft, Purpose, RandomSource
from specdec.verifiers.token import TokenVerifier


@checked()
class ForcedAcceptance(TokenVerifier):
    """Accepts each guess with probability ``alpha``, whatever the target gives. NOT lossless.

    For measurements: a decode of a chain, also with random weights, takes the time that it would
    take with a draft of that alpha (i.i.d., as in Leviathan et al. 2023, Equation 1). All else
    is token verification with its cost; only the comparison of a few numbers differs.

    Raises:
      ValueError: alpha outside [0, 1].
    """

    alpha: Share

    @property
    def lossless(self) -> bool:
        return False

    def _acceptance_prob(self, target: Distribution, draft: Draft) -> Float[Array, "b n"]:
        del target
        return jnp.full(draft.tokens.shape, self.alpha, jnp.float32)

    def _num_accepted(
        self, random: RandomSource, target: Distribution, draft: Draft
    ) -> Int[Array, " b"]:
        del target
        return leading_true(random.uniforms(Purpose.ACCEPTANCE, draft.tokens.shape[1]) < self.alpha)
