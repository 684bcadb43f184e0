"""Deliberately broken verifiers, drafters and models of trees. The oracle must tell each apart.

Each class makes one mistake. They add no fields, so their bases' ``dataclass`` is theirs.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.core.topology import CHAIN, Forest
from specdec.drafters.merged import MergedDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.toy import ToyCache, ToyModel
from specdec.types import PointMass, Purpose
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.tree import Judged, Siblings, judge, tokens_of


class SameForAllSiblings(RecursiveVerifier):
    """Judges every sibling on p: the residual is not updated after a rejected one."""

    def _judge(self, distribution, draft, siblings):
        each, none = [], jnp.ones((len(distribution),))
        for k in range(siblings.exist.shape[1]):
            one = Siblings(siblings.guesses[:, k : k + 1], siblings.exist[:, k : k + 1])
            judged = judge(distribution, draft, one)
            none = none * judged.survival[:, 0]
            each.append(none)
        honest = judge(distribution, draft, siblings)
        return Judged(jnp.stack(each, axis=1), honest.residual, honest.acceptance)


class ResidualOfFirst(RecursiveVerifier):
    """Draws the correction from what the first sibling left, whatever came after it."""

    def _judge(self, distribution, draft, siblings):
        honest = judge(distribution, draft, siblings)
        first = judge(distribution, draft, Siblings(siblings.guesses[:, :1], siblings.exist[:, :1]))
        return dataclasses.replace(honest, residual=first.residual)


class BestFirstOrder(RecursiveVerifier):
    """Tries the sibling first that is most likely to be accepted: the order depends on the draw."""

    def _judge(self, distribution, draft, siblings):
        tokens = tokens_of(draft, siblings)
        p = jnp.take_along_axis(distribution, tokens, axis=1)
        order = jnp.argsort(jnp.where(siblings.exist, -p, 1.0), axis=1)
        self_order = Siblings(
            jnp.take_along_axis(siblings.guesses, order, axis=1),
            jnp.take_along_axis(siblings.exist, order, axis=1),
        )
        judged = judge(distribution, draft, self_order)
        # Back to the indices that the walk knows.
        positions = jnp.argsort(order, axis=1)
        before = jnp.pad(judged.survival, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
        step = jnp.where(before > 0, judged.survival / jnp.where(before > 0, before, 1.0), 1.0)
        survival = jnp.cumprod(jnp.take_along_axis(step, positions, axis=1), axis=1)
        return dataclasses.replace(judged, survival=survival)


class AnotherParentsDistribution(RecursiveVerifier):
    """Judges a node's children on the distribution after another node."""

    def __call__(self, random, target, draft):
        assert not isinstance(target, PointMass)
        nodes = jnp.arange(target.shape[1])
        other = jnp.where(nodes > 0, target.shape[1] - nodes, 0)
        return super().__call__(random, target[:, other], draft)


class SharedNumbers(RecursiveVerifier):
    """Decides at every level with the first level's number."""

    def __call__(self, random, target, draft):
        class Shared:
            def uniforms(self, purpose, count):
                uniforms = random.uniforms(purpose, count)
                if purpose == Purpose.ACCEPTANCE:
                    return jnp.broadcast_to(uniforms[:, :1], uniforms.shape)
                return uniforms

        return super().__call__(Shared(), target, draft)


class WeightsFromTheRoot(TraversalVerifier):
    """Forgets what is left of a guess's parent when the guess is reached."""

    def _reached(self, w, r, q, x):
        return super()._reached(jnp.ones_like(w), r, q, x)


class TraversalOfTokens(TraversalVerifier):
    """Leaves max(r - q, 0) behind a rejected guess, as if its parent were always kept."""

    def _rejected(self, w, r, q):
        return super()._rejected(jnp.ones_like(w), r, q)


class WithoutRho(KSeqVerifier):
    """Accepts with min(1, p / q), as if there were one guess."""

    def _rho(self, p, q, count):
        return jnp.ones((len(p),))


class AsIfIndependent(KSeqVerifier):
    """Takes siblings that were drawn without replacement."""

    def _independent(self, draft):
        return True


class RepeatedSiblings(RecursiveVerifier):
    """Accepts point masses with p(x) / (1 - p of those before), also one that was there before."""

    def __call__(self, random, target, draft):
        assert not isinstance(target, PointMass)
        probs = jax.nn.one_hot(draft.tokens, target.shape[-1])
        return super().__call__(random, target, dataclasses.replace(draft, probs=probs))

    def _judge(self, distribution, draft, siblings):
        p = jnp.take_along_axis(distribution, tokens_of(draft, siblings), axis=1)
        before = jnp.cumsum(p, axis=1) - p
        passes = jnp.where(siblings.exist, p / jnp.maximum(1 - before, 1e-9), 0.0)
        survival = jnp.cumprod(1 - jnp.minimum(passes, 1.0), axis=1)
        return dataclasses.replace(judge(distribution, draft, siblings), survival=survival)


class NotRenormalised(ModelTreeDrafter):
    """Reports siblings' q without the earlier ones, but not renormalised."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        assert draft.probs is not None
        whole = draft.probs[:, _first_siblings(self.topology)]
        return dataclasses.replace(draft, probs=jnp.where(draft.probs > 0, whole, 0.0)), after


class WithReplacementReported(ModelTreeDrafter):
    """Draws siblings without replacement, and reports the first one's q for all."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        assert draft.probs is not None
        whole = draft.probs[:, _first_siblings(self.topology)]
        return dataclasses.replace(draft, probs=whole), after


def _first_siblings(topology):
    first = {}
    return jnp.array([first.setdefault(parent, i) for i, parent in enumerate(topology.parents)])


class SharedByDrafts(MergedDrafter):
    """Every draft draws with the same numbers."""

    def _share(self, random, total, first):
        return super()._share(random, total, 0)


class UnmovedPath(ToyModel):
    """Keeps the first nodes of the block instead of those on the path."""

    def commit(self, cache, path, count):
        return super().commit(cache, None, count)


class PositionsBySlot(ToyModel):
    """A node's position is its index in the block."""

    def extend(self, params, encoded, cache, tokens, topology=CHAIN, *, after=0):
        assert not isinstance(topology, Forest)
        # Weights of the past are by position: write tokens as if the slot were the position.
        slots = cache.length[:, None] + after + jnp.arange(tokens.shape[1])
        depth = jnp.broadcast_to(jnp.asarray(topology.depths())[..., after:], tokens.shape)
        right = cache.length[:, None] + depth
        scaled = (tokens + 1) * (3 * slots + 1) - (tokens + 1) * (3 * right + 1)
        hidden, cache = super().extend(params, encoded, cache, tokens, topology, after=after)
        context = (hidden[..., 0].astype(jnp.int32) + scaled) % params.shape[0]
        return context[..., None].astype(hidden.dtype), cache


class StalePath(ToyModel):
    """Leaves the cache as the block wrote it where more than one node is kept."""

    def commit(self, cache, path, count):
        kept = super().commit(cache, path, count)
        if path is None:
            return kept
        tokens = jnp.where((count > 1)[:, None], cache.tokens, kept.tokens)
        return ToyCache(tokens, kept.length)
