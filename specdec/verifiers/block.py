"""Block verification: all guesses of a block judged together (Sun et al. 2024)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.randomness import draw
from specdec.core.reductions import sum_last
from specdec.core.residuals import acceptance_prob, guess_counts, leading_true, take, take_position
from specdec.types import Distribution, Draft, PointMass, Purpose, RandomSource, Verdict
from specdec.verifiers.token import chain_verdict, check_chain


@dataclasses.dataclass(frozen=True)
class BlockVerifier:
    """Keeps the longest prefix that its own test accepts: on average at least as many tokens as
    token verification.

    With p_0 = 1 and p_i = min(1, p_{i-1} p(x_i) / q(x_i)), prefix i < gamma is accepted with
    probability h_i = A_i / (A_i + 1 - p_i), where A_i = sum_x max(p_i p(x) - q(x), 0) over the
    distributions after x_i, and prefix gamma with h_gamma = p_gamma. The longest accepted prefix,
    tau guesses, is kept, even behind one that was not accepted. The last token comes from
    norm(max(p_tau p - q, 0)), or from p if tau = gamma. The output follows the target's
    distribution exactly.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.

    Notation: p is ``target``, q is ``draft.probs``, gamma is N; a row with fewer guesses has a
    smaller gamma. Point-mass drafts are q = one-hot. For a point-mass target (temperature 0) it
    is token verification: a guess is the target's own token or is not. The acceptance probability
    it reports is that of token verification, so that alpha means the same under both.

    Raises:
      ValueError: if the draft is not a chain.
    """

    lossless = True
    needs_probs = False
    trees = False

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        check_chain(draft)
        gamma, guesses = draft.tokens.shape[1], guess_counts(draft)
        probs = acceptance_prob(target, draft)
        if isinstance(target, PointMass):
            same = leading_true(draft.tokens == target.tokens[:, :gamma])
            kept = jnp.minimum(same, guesses)
            final = take_position(target.tokens, kept)
            return chain_verdict(draft, kept, final, probs)
        reach = self._reach(target, draft)
        weights = self._residuals(target, draft, reach)
        prefix = jnp.arange(gamma + 1)
        accept = self._accept_probs(reach, sum_last(weights), prefix == guesses[:, None])
        uniforms = random.uniforms(Purpose.ACCEPTANCE, gamma)
        # Prefix 0 is accepted always: h_0 = 1.
        accepted = jnp.pad(uniforms < accept[:, 1:], ((0, 0), (1, 0)), constant_values=True)
        kept = self._longest(accepted & (prefix <= guesses[:, None]))
        p = take_position(target, kept)
        final = jnp.where((kept == guesses)[:, None], p, take_position(weights, kept))
        # Where rounding leaves no mass at all, p itself.
        final = jnp.where(sum_last(final)[:, None] > 0, final, p)
        token = draw(final, random.uniforms(Purpose.FINAL, 1)[:, 0])
        return chain_verdict(draft, kept, token, probs)

    def _reach(self, target: Float[Array, "b n1 v"], draft: Draft) -> Float[Array, "b n1"]:
        """p_0..p_gamma of each row."""
        batch, gamma = draft.tokens.shape
        p = take(target[:, :gamma], draft.tokens)
        q = jnp.ones_like(p) if draft.probs is None else take(draft.probs, draft.tokens)
        reach = [jnp.ones((batch,))]
        for i in range(gamma):
            # p / q with q > 0: guesses were drawn. What stands behind a row's last one need not be.
            ratio = p[:, i] / jnp.where(q[:, i] > 0, q[:, i], 1.0)
            reach.append(jnp.minimum(1.0, reach[-1] * ratio))
        return jnp.stack(reach, axis=1)

    def _residuals(
        self, target: Float[Array, "b n1 v"], draft: Draft, reach: Float[Array, "b n1"]
    ) -> Float[Array, "b n1 v"]:
        """max(p_i p - q, 0) after each prefix; behind the last guess there is no q to subtract."""
        scaled = reach[..., None] * target
        if draft.probs is None:
            guesses = jnp.pad(draft.tokens, ((0, 0), (0, 1)), constant_values=-1)
            return jnp.where(jnp.arange(target.shape[-1]) == guesses[..., None], 0.0, scaled)
        return jnp.maximum(scaled - jnp.pad(draft.probs, ((0, 0), (0, 1), (0, 0))), 0.0)

    def _accept_probs(
        self, reach: Float[Array, "b n1"], mass: Float[Array, "b n1"], last: Bool[Array, "b n1"]
    ) -> Float[Array, "b n1"]:
        """h of each prefix; ``mass`` is A."""
        # 0 / 0 where p_i = 1 and p = q: nothing is left to correct, so the prefix is accepted.
        spare = mass + 1 - reach
        return jnp.where(last, reach, jnp.where(spare > 0, mass / spare, 1.0))

    def _longest(self, accepted: Bool[Array, "b n1"]) -> Int[Array, " b"]:
        """The longest accepted prefix, whatever came of shorter ones."""
        return jnp.max(jnp.where(accepted, jnp.arange(accepted.shape[1]), 0), axis=1)
