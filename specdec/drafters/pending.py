"""Tokens that a draft's cache lacks: they were emitted in one block and are fed in the next."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import take_position
from specdec.types import Cache, Encoded, Verdict

# (cache, path, count) -> cache, as :meth:`specdec.models.base.Model.commit`.
Commit = Callable[[Cache, None, Int[Array, " b"]], Cache]


@pytree
class Pending:
    """A draft's pending tokens between blocks. The newest token is always one of them."""

    tokens: Int[Array, "b p"]  # Left-aligned; what stands behind them is filler.
    count: Int[Array, " b"]  # In 1..P.
    # The target's hidden states from which the tokens were drawn, for drafts that read them.
    states: Float[Array, "b p w"] | None = None

    @classmethod
    def of(
        cls, newest: Int[Array, " b"], capacity: int, state: Float[Array, "b w"] | None = None
    ) -> Pending:
        """Pending tokens before the first block: the newest alone, and the state it is drawn from.

        Args:
          capacity: P, tokens that a cache may lack after a block.
        """
        states = None
        if state is not None:
            states = jnp.pad(state[:, None], ((0, 0), (0, capacity - 1), (0, 0)))
        tokens = jnp.tile(newest[:, None], (1, capacity))
        return cls(tokens, jnp.ones((len(newest),), jnp.int32), states)

    def feed(
        self, fed: tuple[Float[Array, "b p d"], Cache], commit: Commit
    ) -> tuple[Float[Array, "b 1 d"], Cache]:
        """The hidden state of the newest token, and the cache with all pending ones.

        Args:
          fed: hidden states and cache, extended with ``tokens``.
        """
        hidden, cache = fed
        newest = take_position(hidden, self.count - 1)[:, None]
        return newest, commit(cache, None, self.count)

    def observe(
        self, verdict: Verdict, kept: Int[Array, " b"],
        states: Float[Array, "b d1 w"] | None = None,
    ) -> tuple[Pending, Int[Array, " b"]]:  # fmt: skip
        """Pending tokens after a block.

        Args:
          kept: emitted tokens that the cache holds: accepted guesses that were fed.
          states: the target's, from which the emitted tokens were drawn, if they are to be kept.

        Returns:
          the pending tokens, and how many of the last ones each row's cache has to forget: those of
          a finished row, whose length so stands still; else 0.
        """
        active = verdict.num_emitted > 0
        at = kept[:, None] + jnp.arange(self.tokens.shape[1])
        tokens = jnp.take_along_axis(verdict.tokens, at, axis=1, mode="clip")
        # A row that has just ended may lack none. It counts one, and is never read again.
        count = jnp.maximum(verdict.num_emitted - kept, 1)
        if states is not None:
            assert self.states is not None
            new = jnp.take_along_axis(states, at[..., None], axis=1, mode="clip")
            states = jnp.where(active[:, None, None], new.astype(jnp.float32), self.states)
        pending = Pending(
            jnp.where(active[:, None], tokens, self.tokens),
            jnp.where(active, count, self.count), states,
        )  # fmt: skip
        return pending, jnp.where(active, 0, self.count)


@pytree
class PendingState:
    """A draft between blocks, whose cache lacks all that the last block emitted."""

    encoded: Encoded  # The draft's view of the inputs.
    cache: Cache  # Holds every emitted token but the pending ones.
    pending: Pending

    def observe(
        self, verdict: Verdict, states: Float[Array, "b d1 w"] | None, commit: Commit
    ) -> PendingState:
        """The state after a block; entries of its guesses are dead.

        Args:
          states: see :meth:`Pending.observe`.
        """
        none = jnp.zeros_like(verdict.num_emitted)
        pending, forgotten = self.pending.observe(verdict, none, states)
        return PendingState(self.encoded, commit(self.cache, None, -forgotten), pending)


def newest_of(pending: Pending) -> Int[Array, " b"]:
    """The newest token."""
    return take_position(pending.tokens, pending.count - 1)
