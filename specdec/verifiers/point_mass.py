"""Verification of guesses that were not drawn: the target draws, and the tree is followed."""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float

from specdec.core.randomness import draw
from specdec.core.residuals import take_position
from specdec.types import Distribution, Draft, Purpose, RandomSource, Verdict
from specdec.verifiers.tree import TreeVerifier, follow, levels, tree_verdict


@dataclasses.dataclass(frozen=True)
class PointMassVerifier(TreeVerifier):
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

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        if draft.probs is not None:
            raise ValueError(
                "PointMassVerifier needs guesses that are no random draws, such as the likeliest "
                "tokens: draw them at temperature 0, or use RecursiveVerifier."
            )
        return super().__call__(random, target, draft)

    def sampled(
        self, random: RandomSource, target: Float[Array, "b n1 v"], draft: Draft
    ) -> Verdict:
        uniforms = random.uniforms(Purpose.FINAL, draft.topology.depth + 1)
        path = follow(
            draft, lambda path, level: draw(take_position(target, path.end), uniforms[:, level])
        )
        # Where the way ended, the same number gives the same token: the one that was not guessed.
        final = draw(take_position(target, path.end), take_position(uniforms, path.length))
        return tree_verdict(draft, path, final, *levels(target, draft, path))
