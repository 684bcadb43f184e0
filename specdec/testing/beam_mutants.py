"""Deliberately broken speculative beams. Comparisons with plain beams must tell each apart.

Each class makes one mistake. They add no fields, so their base's ``dataclass`` is theirs.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.decoding.beam_blocks import BeamEngine


class DraftsOrder(BeamEngine):
    """Takes the parents of survivors that were guessed in the order of the draft's beams."""

    def find(self, guesses, parents, tokens):
        position, found = super().find(guesses, parents, tokens)
        all_found = jnp.all(found, axis=1, keepdims=True)
        return jnp.where(all_found, jnp.sort(position, axis=1), position), found


class LeftOutOfPool(BeamEngine):
    """Forgets beams that end where every survivor was guessed."""

    def replay(self, rules, beams, live, guesses, logits):
        after, new, block, nan = super().replay(rules, beams, live, guesses, logits)
        inside = (block.num_levels > 1)[:, None]
        # Hypotheses that ended before the last level of the block.
        ended = inside & (after.pool_lengths > beams.length[:, None])
        ended &= after.pool_lengths < after.length[:, None]
        scores = jnp.where(ended, -jnp.inf, after.pool_scores)
        return dataclasses.replace(after, pool_scores=scores), new, block, nan


class LengthOfBlock(BeamEngine):
    """Divides by the penalty of a token less: the length that a block began with, after two."""

    def step(self, rules, beams, best):
        late = dataclasses.replace(rules, penalties=jnp.roll(rules.penalties, 1))
        return super().step(late, beams, best)


class SelectedFirst(BeamEngine):
    """Moves entries to where the next level's beams look for them before they are written."""

    def keep(self, block, caches):
        parents = jnp.take_along_axis(block.parents[:, None], block.kept, axis=2)
        moved = jnp.concatenate([parents[:, 1:], block.kept[:, -1:]], axis=1)
        inside = jnp.arange(self.gamma + 1) + 1 < block.num_levels[:, None]
        kept = jnp.where(inside[..., None], moved, block.kept)
        return super().keep(dataclasses.replace(block, kept=kept), caches)


class LateMiss(BeamEngine):
    """Goes on for a level after a survivor that was not guessed."""

    def find(self, guesses, parents, tokens):
        position, found = super().find(guesses, parents, tokens)
        deeper = jnp.any(parents >= self.num_beams, axis=1, keepdims=True)
        return position, found | ~(deeper & (parents < self.num_beams))


class StaleDraft(BeamEngine):
    """Does not feed the draft its own last guesses after a block that survived whole."""

    def guess(self, params, encoded, prompt, beams, live, cache, rules):
        live = dataclasses.replace(live, above=jnp.zeros_like(live.above))
        return super().guess(params, encoded, prompt, beams, live, cache, rules)
