"""Deliberately broken verifiers, drafters and models. The oracle must tell each from the real one.

Each class makes one mistake that public implementations have made, or nearly. They add no fields,
so their bases' ``dataclass`` is theirs.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.core.randomness import draw
from specdec.core.residuals import guess_counts, guess_probs, leading_true
from specdec.core.topology import CHAIN
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.given import GivenDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.random import RandomDrafter
from specdec.models.toy import ToyCache, ToyModel
from specdec.types import Purpose
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier


class RedrawFromTarget(TokenVerifier):
    """Draws the correction from p instead of the residual."""

    def _final_token(self, random, target, draft, num_accepted):
        p = target[jnp.arange(num_accepted.shape[0]), num_accepted]
        return draw(p, random.uniforms(Purpose.FINAL, 1)[:, 0])


class WrongResidualRow(TokenVerifier):
    """Takes the residual one position too late."""

    def _final_token(self, random, target, draft, num_accepted):
        late = jnp.minimum(num_accepted + 1, draft.tokens.shape[1])
        return super()._final_token(random, target, draft, late)


class InclusiveAccept(TokenVerifier):
    """Accepts while u <= p/q: now and then a token that the target never generates."""

    def _accepts(self, random, target, draft):
        p, q = guess_probs(target, draft)
        return random.uniforms(Purpose.ACCEPTANCE, p.shape[1]) * q <= p


class SharedKeys(TokenVerifier):
    """Accepts with the numbers that the guesses were drawn with."""

    def _accepts(self, random, target, draft):
        p, q = guess_probs(target, draft)
        return random.uniforms(Purpose.PROPOSAL, p.shape[1]) * q < p


class KeepGoing(TokenVerifier):
    """Counts every accepted guess, also those behind a rejected one."""

    def _accepts(self, random, target, draft):
        return jnp.sort(super()._accepts(random, target, draft), axis=1, descending=True)


class BonusFromResidual(TokenVerifier):
    """Draws the last token of a fully accepted block from the last guess's residual."""

    def _final_token(self, random, target, draft, num_accepted):
        last = draft.tokens.shape[1] - 1
        return super()._final_token(random, target, draft, jnp.minimum(num_accepted, last))


class DroppedBonus(TokenVerifier):
    """Emits padding where a fully accepted block has its bonus token."""

    def _final_token(self, random, target, draft, num_accepted):
        final = super()._final_token(random, target, draft, num_accepted)
        return jnp.where(num_accepted == draft.tokens.shape[1], 0, final)


class ResidualAfterStop(TokenVerifier):
    """Draws what follows the last guess of a row that stopped from that guess's residual."""

    def _final_token(self, random, target, draft, num_accepted):
        last = jnp.minimum(num_accepted, guess_counts(draft) - 1)
        stopped = guess_counts(draft) < draft.tokens.shape[1]
        at = jnp.where(stopped, last, num_accepted)
        return super()._final_token(random, target, draft, at)


class StopBefore(ModelDrafter):
    """Drops an unlikely guess: what is drawn is kept only if it is likely."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        made = guess_counts(draft)
        count = jnp.where(made < self.gamma, jnp.maximum(made - 1, 1), made)
        return dataclasses.replace(draft, num_guesses=count), after


class SwappedRows(TokenVerifier):
    """Verifies each row against its neighbour's target distributions."""

    def __call__(self, random, target, draft):
        return super().__call__(random, jax.tree.map(lambda a: jnp.roll(a, 1, 0), target), draft)


class OffByOne(TokenVerifier):
    """Verifies each guess against the distribution that follows it."""

    def __call__(self, random, target, draft):
        late = jax.tree.map(lambda a: jnp.concatenate([a[:, 1:], a[:, -1:]], axis=1), target)
        return super().__call__(random, late, draft)


class UnwarpedDraft(ModelDrafter):
    """Draws guesses from the warped q but reports the plain softmax of the same step."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        # Teacher-forced on the same guesses, so that only the reported q is wrong.
        model, weights = self.model, params.weights
        fed = model.extend(weights, state.encoded, state.cache, state.pending.tokens)
        first, cache = state.pending.feed(fed, model.commit)
        hidden = [first]
        if self.gamma > 1:
            hidden += model.extend(weights, state.encoded, cache, draft.tokens[:, :-1])[:1]
        logits = model.logits(weights, jnp.concatenate(hidden, axis=1))
        probs = jax.nn.softmax(logits, axis=-1)
        return dataclasses.replace(draft, probs=probs), after


class NoRollback(ModelDrafter):
    """Leaves rejected guesses in the draft's cache. q is reported as drawn: slow, not wrong."""

    def observe(self, state, verdict, states):
        after = super().observe(state, verdict, states)
        return dataclasses.replace(after, cache=state.cache)


class StaleTarget(ToyModel):
    """Keeps one token too many at each commit: a rejected guess stays in the target's cache."""

    def commit(self, cache, path, count):
        capacity = cache.tokens.shape[1]
        return ToyCache(cache.tokens, jnp.minimum(cache.length + count + (count > 0), capacity))


class AddingCache(ToyModel):
    """Adds to cache entries instead of setting them, so that rolling back corrupts them."""

    def extend(self, params, encoded, cache, tokens, topology=CHAIN, *, after=0):
        slots = cache.length[:, None] + after + jnp.arange(tokens.shape[1])
        old = jnp.take_along_axis(cache.tokens, slots, axis=1, mode="clip")
        return super().extend(params, encoded, cache, tokens + old, topology, after=after)


class LaterCorrection(BlockVerifier):
    """Draws the correction from the token-level residual max(p - q, 0)."""

    def _residuals(self, target, draft, reach):
        return super()._residuals(target, draft, jnp.ones_like(reach))


class TokenAcceptance(BlockVerifier):
    """Accepts each prefix with p_i, as if it were the last."""

    def _accept_probs(self, reach, mass, last):
        return reach


class StopsAtRejection(BlockVerifier):
    """Ends at the first prefix that is not accepted, as token verification does."""

    def _longest(self, accepted):
        return leading_true(accepted) - 1


class UnboundedReach(BlockVerifier):
    """Multiplies p(x) / q(x) without the minimum with 1."""

    def _reach(self, target, draft):
        p, q = guess_probs(target, draft)
        ratio = p / jnp.maximum(q, 1e-9)
        return jnp.minimum(jnp.pad(jnp.cumprod(ratio, axis=1), ((0, 0), (1, 0)), "edge"), 1.0)


class UnigramReported(NgramDrafter):
    """Draws from the n-gram and reports the unigram distribution."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        unigram = params.weights.unigram
        probs = jnp.broadcast_to(unigram, (*draft.tokens.shape, *unigram.shape))
        return dataclasses.replace(draft, probs=probs), after


class CopyUniform(CopyingDrafter):
    """Reports copied guesses as if they had been drawn uniformly."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        return dataclasses.replace(draft, probs=jnp.full((*draft.tokens.shape, 3), 1 / 3)), after


class GivenUniform(GivenDrafter):
    """Reports guesses of a given text as if they had been drawn uniformly."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        return dataclasses.replace(draft, probs=jnp.full((*draft.tokens.shape, 3), 1 / 3)), after


class RandomWithoutLast(RandomDrafter):
    """Never draws the last token, and reports that it does."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        kept = jnp.minimum(draft.tokens, self.vocab_size - 2)
        return dataclasses.replace(draft, tokens=kept), after


class InnerReported(HierarchicalDrafter):
    """Reports the draft model's distribution with the tokens' columns mixed up."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        assert draft.probs is not None
        return dataclasses.replace(draft, probs=jnp.roll(draft.probs, 1, axis=-1)), after


class InnerSharedRounds(HierarchicalDrafter):
    """Uses the same random numbers in every inner round."""

    def _uniforms(self, random, i):
        return super()._uniforms(random, jnp.zeros_like(i))


class LenientRedraw(LenientVerifier):
    """Draws the correction from p, which lets tokens exceed p / l."""

    _final_token = RedrawFromTarget._final_token
