"""Lenience: more guesses are accepted, and the output no longer follows the target exactly."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Array, Bool, Float, Int

from specdec.core.fields import ABOVE_0, Real, checked
from specdec.core.residuals import acceptance_prob, guess_probs, leading_true, take
from specdec.types import Distribution, Draft, PointMass, Purpose, RandomSource
from specdec.verifiers.token import TokenVerifier


@checked()
class LenientVerifier(TokenVerifier):
    """Token verification against q scaled down by l = ``lenience``. NOT lossless for l < 1.

    A guess is accepted with probability min(1, p / (l q)), and corrections come from
    norm(max(0, p - q)) as in token verification. So no token has more than p / l of probability. At
    temperature 0 a guess is accepted if p(x) >= l max p, by the probabilities before the argmax.

    Source: Leviathan et al. 2023, section 2.3 and appendix A.5. (A.5 prints p(x) <= l max p for
    temperature 0; only >= is meant.)

    Attributes:
      lenience: l, in (0, 1]; 1 is token verification.

    Raises:
      ValueError: lenience outside (0, 1]; a draft that is not a chain.
    """

    lenience: Annotated[float, Real("in (0, 1] (1 is exact)", ABOVE_0, 1)]
    needs_probs = True

    @property
    def lossless(self) -> bool:
        return self.lenience == 1

    def _acceptance_prob(self, target: Distribution, draft: Draft) -> Float[Array, "b n"]:
        return acceptance_prob(target, draft, self.lenience)

    def _num_accepted(
        self, random: RandomSource, target: Distribution, draft: Draft
    ) -> Int[Array, " b"]:
        if not isinstance(target, PointMass) or self.lossless:
            return super()._num_accepted(random, target, draft)
        assert target.relative is not None
        relative = take(target.relative[:, : draft.tokens.shape[1]], draft.tokens)
        return leading_true(relative >= self.lenience)

    def _accepts(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Bool[Array, "b n"]:
        p, q = guess_probs(target, draft)
        return random.uniforms(Purpose.ACCEPTANCE, p.shape[1]) * self.lenience * q < p
