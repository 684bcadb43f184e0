"""Verification of guesses that were not drawn: the target draws, and the tree is followed."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core.randomness import draw
from specdec.core.residuals import take_position
from specdec.types import Distribution, Draft, PointMass, Purpose, RandomSource, Verdict
from specdec.verifiers.tree import (
    Path,
    greedy_verdict,
    levels,
    siblings_after,
    start_of,
    tokens_of,
    tree_verdict,
)


@dataclasses.dataclass(frozen=True)
class PointMassVerifier:
    """Draws the next token from p at each node, and continues while it is one of the guesses.

    So a guess x is accepted with p(x), and with p(x) / (1 - p(siblings before it)) once these are
    rejected: recursive verification with q = one-hot, where the residual is p without them. Emitted
    tokens are draws from p, whatever the guesses are, as long as guesses do not depend on the
    block's random numbers. Siblings may repeat: the first is followed.

    Source: Leviathan et al. 2023, Algorithm 1 with q = one-hot; trees as in Miao et al. 2024,
    "SpecInfer".

    Raises:
      ValueError: if the guesses were drawn, and so have a q.
    """

    lossless: bool = dataclasses.field(default=True, init=False)
    needs_probs: bool = dataclasses.field(default=False, init=False)
    trees: bool = dataclasses.field(default=True, init=False)

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        if draft.probs is not None:
            raise ValueError(
                "PointMassVerifier needs guesses that are no random draws, such as the likeliest "
                "tokens: draw them at temperature 0, or use RecursiveVerifier."
            )
        if isinstance(target, PointMass):
            return greedy_verdict(target, draft)
        depth = draft.topology.depth
        uniforms = random.uniforms(Purpose.FINAL, depth + 1)
        path, going = start_of(draft), jnp.ones((len(draft.tokens),), bool)
        for level in range(depth):
            token = self._token(target, path, uniforms[:, level])
            siblings = siblings_after(draft, path.end)
            same = siblings.exist & (tokens_of(draft, siblings) == token[:, None])
            going &= jnp.any(same, axis=1)
            path = path.then(take_position(siblings.guesses, jnp.argmax(same, axis=1)), going)
        # Where the way ended, the same number gives the same token: the one that was not guessed.
        uniform = take_position(uniforms, path.length)
        final = self._token(target, path, uniform)
        return tree_verdict(draft, path, final, *levels(target, draft, path))

    def _token(self, target: Array, path: Path, uniform: Array) -> Int[Array, " b"]:
        return draw(take_position(target, path.end), uniform)
