"""Look-ahead embeddings: the target itself guesses several tokens in one call."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.heads import grow_from_levels
from specdec.drafters.pending import Pending, PendingState
from specdec.models.look_ahead.model import LookAheadModel
from specdec.types import Draft, Prompt, RandomSource, RuleStates, Start, Verdict


@dataclasses.dataclass(frozen=True)
class LookAheadDrafter:
    """A chain or a tree of guesses from one call of the target, behind which embeddings stand.

    At the newest token that call has the target's own distribution, so the first guess of a chain
    is always accepted (unless a draft vocabulary leaves tokens out). Each embedding guesses one
    token more. As with heads, no guess depends on the ones before. A block costs two calls of the
    target, so it pays only if embeddings guess well. Parameters are
    :class:`~specdec.drafters.base.DraftParams` of the embeddings.

    Source: Monea et al. 2023, "PaSS", section 3.

    Raises:
      ValueError: the topology is deeper than the embeddings and one more.
    """

    model: LookAheadModel
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
    ) -> PendingState:
        capacity = self.topology.depth + 1
        most = max_len + capacity + self.model.count
        return PendingState(
            target.encoded, self.model.start(params.weights, prompt, most, target.encoded),
            Pending.of(jnp.asarray(prompt.last_token), capacity),
        )  # fmt: skip

    def propose(
        self, params: DraftParams, state: PendingState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, PendingState]:
        pending = state.pending
        hidden, cache = self.model.extend(
            params.weights, state.encoded, state.cache, pending.tokens, pending.count
        )
        # The embeddings' own entries are dead from now on.
        cache = self.model.commit(cache, None, pending.count)
        scores = self.model.logits(params.weights, hidden[:, : self.topology.depth])
        draft = grow_from_levels(
            self.model, params, self.topology, scores, random, rules, independent=self.independent
        )
        return draft, dataclasses.replace(state, cache=cache)

    def observe(
        self, state: PendingState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> PendingState:
        del states
        return state.observe(verdict, None, self.model.commit)
