"""Heads on the target's last hidden state: each guesses the token at its own distance."""

from __future__ import annotations

import dataclasses
import os

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec.core.fields import PathName, checked
from specdec.core.pytrees import pytree
from specdec.core.residuals import take_position
from specdec.core.topology import Topology
from specdec.drafters.base import (
    Drafter,
    DraftParams,
    LookAhead,
    OffsetHeads,
    OpenDraft,
    Opening,
    chain,
    never_stopping,
    prefix_states,
)
from specdec.drafters.growing import grow
from specdec.drafters.guessing import adjusted, known, likeliest_ids, weights_of
from specdec.drafters.shape import Tree, fixed_shape
from specdec.types import Draft, Prompt, Purpose, RandomSource, RuleStates, Start, Verdict


def grow_from_levels(
    model: OffsetHeads | LookAhead, params: DraftParams, tree: Topology,
    logits: Float[Array, "b d v"], random: RandomSource, rules: RuleStates, *, independent: bool,
) -> Draft:  # fmt: skip
    """A draft all of whose nodes of one level are guessed from the same logits, level by level.

    Args:
      rules: states of the rules, behind which the logits of a level differ.
      independent: whether siblings are drawn with replacement.
    """
    greedy, rules = params.sampling.greedy, known(params, rules)
    # Without rules a level has one distribution.
    shared = logits if rules else weights_of(model, params, logits)
    depths = tree.depths()

    def distributions_after(nodes, tokens, states):
        del tokens
        level = 0 if nodes[0] < 0 else int(depths[nodes[0]]) + 1
        found = jnp.repeat(shared[:, level : level + 1], len(np.atleast_1d(nodes)), axis=1)
        if not rules:
            return found
        return weights_of(model, params, adjusted(model, params, found, states))

    uniforms = None if greedy else random.uniforms(Purpose.PROPOSAL, tree.size)
    tokens, probs = grow(
        tree, len(logits), distributions_after, uniforms, independent, params.sampling.rules, rules
    )
    if greedy:
        tokens = likeliest_ids(model, params, tokens)
    return Draft(tokens, probs, tree, independent=independent and not greedy)


@pytree
class OffsetHeadsState:
    """The heads' drafter between blocks."""

    # The target's where the newest token was drawn; zeros if that is a row's first token.
    hidden: Float[Array, "b d"]


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

    heads: OffsetHeads
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
    ) -> OffsetHeadsState:
        del params, max_len
        last = jnp.asarray(prompt.prefix_lengths - 1)
        return OffsetHeadsState(take_position(prefix_states(target), last))

    def propose(
        self, params: DraftParams, state: OffsetHeadsState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, OffsetHeadsState]:
        scores = self.heads.logits(params.weights, state.hidden)[:, : self.topology.depth]
        draft = grow_from_levels(
            self.heads, params, self.topology, scores, random, rules, independent=self.independent
        )
        return draft, state

    def observe(
        self, state: OffsetHeadsState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> OffsetHeadsState:
        newest = take_position(states, jnp.maximum(verdict.num_emitted - 1, 0))
        active = (verdict.num_emitted > 0)[:, None]
        return OffsetHeadsState(jnp.where(active, newest.astype(jnp.float32), state.hidden))


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
        make, weights, most = opening.heads(str(self))

        def make_tree(tree: Tree, catch_up: int) -> Drafter:
            del catch_up  # They keep a block's emitted tokens alone, no more than a tree's levels.
            return make(fixed_shape(tree, "heads"), tree.independent)

        return OpenDraft(
            never_stopping("A head's", lambda gamma: make(chain(gamma), False)),
            lambda sampling: DraftParams(weights, sampling.traced()), weights, make_tree=make_tree,
            most_guesses=most,
        )  # fmt: skip
