"""The contract of verifiers."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

from specdec.types import Distribution, Draft, RandomSource, Verdict


@runtime_checkable
class Verifier(Protocol):
    """Keeps a prefix of the draft so that what is emitted follows the target (if lossless)."""

    @property
    def lossless(self) -> bool:
        """Whether the output's distribution is exactly the target's."""
        ...

    @property
    def needs_probs(self) -> bool:
        """Whether it needs a greedy target's probabilities behind the argmax."""
        ...

    @property
    def trees(self) -> bool:
        """Whether it verifies trees too, or only chains."""
        ...

    def __call__(self, random: RandomSource, target: Distribution, draft: Draft) -> Verdict:
        """Verifies one block.

        Args:
          random: this block's random numbers.
          target: the target's distributions after the last token and after each of N guesses.
          draft: N guesses with the exact q they were drawn from. Only ``draft.num_guesses`` of a
            row are verified: what follows them is filler, and the token after them is drawn from
            the target.

        Raises:
          ValueError: a draft that it cannot verify.
        """
        ...


def described(verifier: Verifier) -> str:
    """Class and settings, such as "BlockVerifier" or "LenientVerifier(lenience=0.5)"."""
    fields = [f for f in dataclasses.fields(verifier) if f.init]  # pyright: ignore[reportArgumentType]
    settings = ", ".join(f"{f.name}={getattr(verifier, f.name)!r}" for f in fields)
    return type(verifier).__name__ + (f"({settings})" if settings else "")
