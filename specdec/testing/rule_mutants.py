"""Broken engines that the exact oracle must catch, as far as rules for logits go.

Each class makes one mistake. They add no fields, so their base's ``dataclass`` is theirs.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.core.residuals import take_position
from specdec.core.standardize import standardize
from specdec.decoding.engine import Engine
from specdec.rules import base as rules
from specdec.types import PointMass


class StateOfTheBlock(Engine):
    """All positions of a block have the state of its start."""

    def _behind(self, params, state, draft):
        size = draft.tokens.shape[1] + 1
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], size, axis=1), state.rules)


class RejectedGuessesCount(Engine):
    """Guesses move the rules' state, accepted or not."""

    def _followed(self, params, state, scored, verdict):
        newest = take_position(verdict.tokens, jnp.maximum(verdict.num_emitted - 1, 0))
        last = rules.at(scored.rules, -1)
        after = rules.advanced(params.sampling.rules, last, newest)
        return rules.where(verdict.num_emitted > 0, after, state.rules)


class HistoryOfTheSibling(Engine):
    """Each guess has the state behind the guess beside it."""

    def _behind(self, params, state, draft):
        right = super()._behind(params, state, draft)
        ranks, size = draft.topology.ranks(), draft.tokens.shape[1] + 1
        other = [0, *(i if rank else i + 1 for i, rank in enumerate(ranks))]
        assert len(other) == size
        return rules.at(right, jnp.array(other))


class BonusWithoutRules(Engine):
    """The rules are not applied behind the last guess."""

    def scored(self, params, state, draft, hidden, cache):
        right = super().scored(params, state, draft, hidden, cache)
        logits = self.target.logits(params.target, hidden)
        plain = standardize(logits, params.sampling)
        assert not isinstance(plain, PointMass)
        assert not isinstance(right.distribution, PointMass)
        mixed = jnp.concatenate([right.distribution[:, :-1], plain[:, -1:]], axis=1)
        return dataclasses.replace(right, distribution=mixed)


class NewestTokenMissing(Engine):
    """The token that a block adds does not move the state."""

    def _followed(self, params, state, scored, verdict):
        last = jnp.maximum(verdict.num_emitted - 1, 0)
        before = rules.taken(scored.rules, take_position(verdict.path, last))
        return rules.where(verdict.num_emitted > 0, before, state.rules)


class NeighboursState(Engine):
    """Each row has the state of the next."""

    def _behind(self, params, state, draft):
        other = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), state.rules)
        return super()._behind(params, dataclasses.replace(state, rules=other), draft)


class FinishedRowsAdvance(Engine):
    """A row that has ended still moves its state."""

    def _followed(self, params, state, scored, verdict):
        last = jnp.maximum(verdict.num_emitted - 1, 0)
        before = rules.taken(scored.rules, take_position(verdict.path, last))
        newest = take_position(verdict.tokens, last)
        return rules.advanced(params.sampling.rules, before, newest)
