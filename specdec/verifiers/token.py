"""Token verification: Algorithm 1 of Leviathan, Kalman and Matias (2023)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.randomness import draw
from specdec.core.residuals import (
    acceptance_prob,
    guess_counts,
    guess_probs,
    leading_true,
    residual_weights,
    take_position,
)
from specdec.types import Distribution, Draft, PointMass, Purpose, RandomSource, Verdict


@dataclasses.dataclass(frozen=True)
class TokenVerifier:
    """Accepts guess x_i while u_i < p_i(x_i) / q_i(x_i), then draws one more token.

    That token comes from norm(max(0, p - q)) at the first rejection (correction) or from p after
    the last guess (bonus), so the output follows the target's distribution exactly (appendix A.1).
    A block emits 1..gamma+1 tokens.

    Notation: p is ``target``, q is ``draft.probs``, gamma is N. Point-mass drafts are accepted
    with probability p(x), and x is removed from p at a rejection. Point-mass targets (temperature
    0) accept a guess if it is the target's own token and draw nothing. Where a row has fewer than
    gamma guesses, the bonus token follows the last of them. With gamma = 0 the one token is drawn
    from p: plain decoding.

    Nothing here is of language models. Take any slow f that gives a distribution p, and a slow g
    that works on a sample of it (section 6): g may start on a sample x of a fast guess q while f
    runs. Verified as a draft of one guess, x is kept or drawn again, and g runs again only then.
    Samples follow p, and at best a chain of f and g takes half the time.

    Raises:
      ValueError: if the draft is not a chain.
    """

    needs_probs = False
    trees = False

    @property
    def lossless(self) -> bool:
        """Whether the output's distribution is exactly the target's."""
        return True

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        check_chain(draft)
        num_accepted = jnp.minimum(self._num_accepted(random, target, draft), guess_counts(draft))
        if isinstance(target, PointMass):
            final = take_position(target.tokens, num_accepted)
        else:
            final = self._final_token(random, target, draft, num_accepted)
        return chain_verdict(draft, num_accepted, final, self._acceptance_prob(target, draft))

    def _acceptance_prob(self, target: Distribution, draft: Draft) -> Float[Array, "b n"]:
        return acceptance_prob(target, draft)

    def _num_accepted(
        self, random: RandomSource, target: Distribution, draft: Draft
    ) -> Int[Array, " b"]:
        if isinstance(target, PointMass):
            return leading_true(draft.tokens == target.tokens[:, : draft.tokens.shape[1]])
        return leading_true(self._accepts(random, target, draft))

    def _accepts(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Bool[Array, "b n"]:
        p, q = guess_probs(target, draft)
        # u < p/q without the division; strict, so that p = 0 is never accepted.
        return random.uniforms(Purpose.ACCEPTANCE, p.shape[1]) * q < p

    def _final_token(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft,
        num_accepted: Int[Array, " b"],
    ) -> Int[Array, " b"]:  # fmt: skip
        gamma = draft.tokens.shape[1]
        p = take_position(target, num_accepted)
        uniform = random.uniforms(Purpose.FINAL, 1)[:, 0]
        if gamma == 0:
            return draw(p, uniform)
        at = jnp.minimum(num_accepted, gamma - 1)
        q = None if draft.probs is None else take_position(draft.probs, at)
        correction = residual_weights(p, q, take_position(draft.tokens, at))
        rejected = num_accepted < guess_counts(draft)
        weights = jnp.where(rejected[:, None], correction, p)
        return draw(weights, uniform)


def check_chain(draft: Draft) -> None:
    """Raises ValueError unless the draft is a chain."""
    if not draft.topology.is_chain:
        raise ValueError(
            f"This verifier needs a chain of guesses; the draft is a tree: {draft.topology}."
        )


def chain_verdict(
    draft: Draft, num_accepted: Int[Array, " b"], final: Int[Array, " b"],
    probs: Float[Array, "b n"],
) -> Verdict:  # fmt: skip
    """The first ``num_accepted`` guesses of each row, and then ``final``.

    Args:
      probs: see :class:`specdec.types.Verdict`. Examined are the levels up to the first rejection.
    """
    batch, gamma = draft.tokens.shape
    slots = jnp.arange(gamma + 1)
    guesses = jnp.pad(draft.tokens, ((0, 0), (0, 1)))
    tokens = jnp.where(slots == num_accepted[:, None], final[:, None], guesses)
    path = jnp.broadcast_to(slots, (batch, gamma + 1))
    examined = jnp.minimum(num_accepted + 1, guess_counts(draft))
    return Verdict(tokens, num_accepted + 1, num_accepted, path, probs, examined)
