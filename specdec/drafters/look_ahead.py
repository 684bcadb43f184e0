"""Look-ahead embeddings: the target itself guesses several tokens in one call."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.drafters.base import DraftParams, LookAhead
from specdec.drafters.heads import grow_from_levels
from specdec.pytrees import pytree
from specdec.topology import Topology
from specdec.types import Cache, Draft, Encoded, Prompt, RandomSource, Start, Verdict


@pytree
class LookAheadState:
    """The look-ahead drafter between blocks."""

    encoded: Encoded  # What the target made of the inputs.
    cache: Cache  # The draft's own; holds every emitted token but the pending ones.
    pending: Int[Array, "b d1"]  # Tokens to feed first, left-aligned: what the last block emitted.
    num_pending: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class LookAheadDrafter:
    """A chain or a tree of guesses from one call of the target, behind which embeddings stand.

    At the newest token that call has the target's own distribution, so the first guess of a chain
    is accepted for certain (unless a draft vocabulary leaves tokens out); each embedding guesses
    one token more. As with heads no guess knows the
    ones before. A block costs two calls of the target, so that it pays only where embeddings guess
    well. Parameters are :class:`~specdec.drafters.base.DraftParams` ones of the embeddings.

    Source: Monea et al. 2023, "PaSS", section 3.

    Raises:
      ValueError: the topology is deeper than the embeddings and one more.
    """

    model: LookAhead
    topology: Topology
    independent: bool = False  # Whether siblings are drawn with replacement.

    def __post_init__(self):
        most = 1 + self.model.count
        if self.topology.depth > most:
            raise ValueError(
                f"The draft has {self.model.count} look-ahead embeddings, so at most {most} "
                f"guesses in a row; {self.topology.depth} were asked for."
            )

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> LookAheadState:
        capacity = self.topology.depth + 1
        most = max_len + capacity + self.model.count
        return LookAheadState(
            target.encoded, self.model.start(params.weights, prompt, most, target.encoded),
            jnp.tile(prompt.last_token[:, None], (1, capacity)),
            jnp.ones((prompt.batch_size,), jnp.int32),
        )  # fmt: skip

    def propose(
        self, params: DraftParams, state: LookAheadState, random: RandomSource
    ) -> tuple[Draft, LookAheadState]:
        hidden, cache = self.model.extend(
            params.weights, state.encoded, state.cache, state.pending, state.num_pending
        )
        # The embeddings' own entries are dead from now on.
        cache = self.model.commit(cache, state.num_pending)
        scores = self.model.logits(params.weights, hidden[:, : self.topology.depth])
        draft = grow_from_levels(
            self.model, params, self.topology, scores, random, independent=self.independent
        )
        return draft, dataclasses.replace(state, cache=cache)

    def observe(
        self, state: LookAheadState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> LookAheadState:
        del states
        active = verdict.num_emitted > 0
        # A finished row gives its pending tokens back, so that its length stands still.
        cache = self.model.commit(state.cache, jnp.where(active, 0, -state.num_pending))
        return LookAheadState(
            state.encoded, cache, jnp.where(active[:, None], verdict.tokens, state.pending),
            jnp.where(active, verdict.num_emitted, state.num_pending),
        )  # fmt: skip
