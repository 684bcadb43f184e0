"""What a drafter is."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Array, Int

from specdec.types import Draft, DrafterState, Encoded, Params, RandomSource, Verdict


class Drafter(Protocol):
    """Proposes up to ``gamma`` tokens a block together with the exact q they were drawn from."""

    @property
    def gamma(self) -> int:
        """Guesses a block, at most."""
        ...

    def init(
        self, params: Params, inputs: Int[Array, "b s"], max_len: int, target: Encoded
    ) -> DrafterState:
        """State before the first block, for outputs of up to ``max_len`` tokens.

        Args:
          target: what the target's ``encode`` made of the inputs.
        """
        ...

    def propose(
        self, params: Params, state: DrafterState, random: RandomSource
    ) -> tuple[Draft, DrafterState]:
        """Guesses the tokens that follow what was emitted so far."""
        ...

    def observe(self, state: DrafterState, verdict: Verdict) -> DrafterState:
        """Takes in what was emitted and rolls back; rows with num_emitted = 0 stand still."""
        ...
