"""Heads on the target's last hidden state: each guesses the token at its own distance."""

from __future__ import annotations

import dataclasses
import os

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.fields import PathName, checked
from specdec.core.residuals import take_position
from specdec.core.topology import Topology
from specdec.drafters.base import Drafter, DraftParams, OpenDraft, Opening, prefix_states
from specdec.drafters.growing import grow_draft
from specdec.drafters.shape import Shape, fixed_shape
from specdec.models.heads.model import TargetHeads
from specdec.models.look_ahead.model import LookAheadModel
from specdec.types import Draft, Prompt, RandomSource, RuleStates, Start, Verdict


def grow_from_levels(
    model: TargetHeads | LookAheadModel, params: DraftParams, tree: Topology,
    logits: Float[Array, "b d v"], random: RandomSource, rules: RuleStates, *, independent: bool,
) -> Draft:  # fmt: skip
    """A draft all of whose nodes of one level are guessed from the same logits, level by level.

    Args:
      rules: states of the rules, behind which the logits of a level differ.
      independent: whether siblings are drawn with replacement.
    """
    depths = tree.depths()

    def logits_after(nodes, guesses):
        level = 0 if guesses is None else int(depths[nodes[0]]) + 1
        return logits[:, level : level + 1]

    return grow_draft(
        model, params, tree, len(logits), logits_after, random, rules, independent=independent
    )


@dataclasses.dataclass(frozen=True)
class OffsetHeadsDrafter:
    """A chain or a tree of guesses by heads that see the target's last hidden state, in one call.

    Head i knows nothing of the guesses before its own: all nodes of a level have the same q. A
    block's newest token was drawn from the state of the last accepted guess, or of the token before
    the draft: that is what the heads see next. Parameters are
    :class:`~specdec.drafters.base.DraftParams` ones of the heads.

    Sources: Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models",
    sections 3 and 4; Cai et al. 2024, "Medusa", section 2.1.

    Raises:
      ValueError: the topology is deeper than there are heads.
    """

    heads: TargetHeads
    topology: Topology
    independent: bool = False  # Whether siblings are drawn with replacement.

    def __post_init__(self):
        if self.topology.depth > self.heads.count:
            raise ValueError(
                f"The draft has {self.heads.count} heads, so at most as many guesses in a row; "
                f"{self.topology.depth} were asked for."
            )

    def init(
        self, params: DraftParams, prompt: Prompt, max_len: int, target: Start
    ) -> Float[Array, "b d"]:
        """The target's hidden state where the newest token was drawn; 0 of a row's first token."""
        del params, max_len
        return take_position(prefix_states(target), jnp.asarray(prompt.prefix_lengths - 1))

    def propose(
        self, params: DraftParams, state: Float[Array, "b d"], random: RandomSource,
        rules: RuleStates,
    ) -> tuple[Draft, Float[Array, "b d"]]:  # fmt: skip
        scores = self.heads.logits(params.weights, state)[:, : self.topology.depth]
        draft = grow_from_levels(
            self.heads, params, self.topology, scores, random, rules, independent=self.independent
        )
        return draft, state

    def observe(
        self, state: Float[Array, "b d"], verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> Float[Array, "b d"]:
        newest = take_position(states, jnp.maximum(verdict.num_emitted - 1, 0))
        active = (verdict.num_emitted > 0)[:, None]
        return jnp.where(active, newest.astype(jnp.float32), state)


@checked(named=True)
class Heads:
    """A draft trained for the target: heads, an EAGLE-style layer, or look-ahead embeddings.

    Attributes:
      path: their directory, which :mod:`specdec.training.heads` writes.
    """

    path: PathName

    def __str__(self) -> str:
        return os.fspath(self.path)

    def open(self, opening: Opening) -> OpenDraft:
        drafter_of, weights, most = opening.heads(str(self))

        def make(shape: Shape, catch_up: int) -> Drafter:
            del catch_up  # They keep a block's emitted tokens alone, no more than a tree's levels.
            return drafter_of(fixed_shape(shape, "heads"), shape.independent)

        return OpenDraft(
            make, lambda sampling: DraftParams(weights, sampling.traced()), weights,
            most_guesses=most,
        )  # fmt: skip
