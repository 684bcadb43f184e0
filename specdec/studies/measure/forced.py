"""Forced acceptance: what a decode would cost at a given alpha, without models that agree."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.randomness import draw
from specdec.core.residuals import leading_true, take_position
from specdec.types import Distribution, Draft, PointMass, Purpose, RandomSource, Verdict
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.tree import (
    Judged,
    Siblings,
    levels,
    siblings_after,
    start_of,
    tree_verdict,
)


@dataclasses.dataclass(frozen=True)
class ForcedAcceptance(TokenVerifier):
    """Accepts each guess with probability ``alpha``, whatever the target gives. NOT lossless.

    For measurements: a decode of any shape, also with random weights, takes the time that it would
    take with a draft of that alpha (i.i.d., as in Leviathan et al. 2023, Equation 1). All else
    is token verification, or recursive verification of a tree, with its cost; only the comparison
    of a few numbers differs. In a tree the first sibling of each level is accepted with alpha.

    Raises:
      ValueError: alpha outside [0, 1].
    """

    alpha: float  # In [0, 1].
    lossless: bool = dataclasses.field(default=False, init=False)
    trees: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self):
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}.")

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        if draft.topology.is_chain:
            return super().__call__(random, target, draft)
        verdict = _ForcedTree(self.alpha)(random, target, draft)
        probs = jnp.full(verdict.acceptance_prob.shape, self.alpha, jnp.float32)
        return dataclasses.replace(verdict, acceptance_prob=probs)

    def _acceptance_prob(self, target: Distribution, draft: Draft) -> Float[Array, "b n"]:
        del target
        return jnp.full(draft.tokens.shape, self.alpha, jnp.float32)

    def _num_accepted(
        self, random: RandomSource, target: Distribution, draft: Draft
    ) -> Int[Array, " b"]:
        del target
        return leading_true(random.uniforms(Purpose.ACCEPTANCE, draft.tokens.shape[1]) < self.alpha)


@dataclasses.dataclass(frozen=True)
class _ForcedTree(RecursiveVerifier):
    """The same for a tree."""

    alpha: float = 1.0

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        if not isinstance(target, PointMass) and draft.probs is not None:
            return super().__call__(random, target, draft)
        uniforms = random.uniforms(Purpose.ACCEPTANCE, draft.topology.depth)
        path, going = start_of(draft), jnp.ones((len(uniforms),), bool)
        for level in range(draft.topology.depth):
            siblings = siblings_after(draft, path.end)
            going &= siblings.exist[:, 0] & (uniforms[:, level] < self.alpha)
            path = path.then(siblings.guesses[:, 0], going)
        if isinstance(target, PointMass):
            final = take_position(target.tokens, path.end)
        else:
            uniform = random.uniforms(Purpose.FINAL, 1)[:, 0]
            final = draw(take_position(target, path.end), uniform)
        return tree_verdict(draft, path, final, *levels(target, draft, path))

    def _choose(
        self, judged: Judged, siblings: Siblings, uniform: Float[Array, " b"]
    ) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        kept = jax.lax.optimization_barrier(judged.survival)  # Its cost is a part of what is timed.
        return jnp.zeros_like(kept[:, 0], jnp.int32), siblings.exist[:, 0] & (uniform < self.alpha)
