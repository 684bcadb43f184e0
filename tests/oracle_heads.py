"""Toy drafts on the toy target's hidden state, which is a row's number in its table."""

import dataclasses

import jax.numpy as jnp

from specdec.core.residuals import write_at
from specdec.core.topology import CHAIN, Topology
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.drafters.look_ahead import LookAheadDrafter
from specdec.models.cache import block_mask, slot_positions
from specdec.models.toy import ToyCache, ToyModel


class WholeVocabulary:
    """Logits of all tokens."""

    def over_vocabulary(self, params, distribution):
        del params
        return distribution


@dataclasses.dataclass(frozen=True)
class ToyHeads(WholeVocabulary):
    """Head i reads row 3 h + 7 i of a table [C, V] of logits; h is the hidden state."""

    count: int = 3
    width: int = 1

    def logits(self, params, hidden):
        rows = 3 * hidden.astype(jnp.int32) + 7 * (1 + jnp.arange(self.count))
        return params[rows % len(params)]


@dataclasses.dataclass(frozen=True)
class ToyLayer(WholeVocabulary):
    """A layer on hidden states, whose cache holds a number made of each token and its state.

    Its own state is a row's number in a table [C, V] of logits, made of all numbers before it.
    """

    width: int = 1

    def start(self, params, batch, max_len, target):
        del params
        return target, ToyCache(jnp.zeros((batch, max_len), jnp.int32), jnp.zeros(batch, jnp.int32))

    def extend(self, params, encoded, cache, tokens, states, topology=CHAIN, *, after=0):
        numbers = numbers_of(tokens, states)
        length, max_len, count = cache.length, cache.tokens.shape[1], tokens.shape[1]
        written = write_at(cache.tokens, numbers, length + after)
        seen = block_mask(topology, length, max_len, count, after)
        weights = 3 * slot_positions(topology, length, max_len, after + count) + 1
        past = jnp.sum(jnp.where(seen, (written * weights)[:, None], 0), axis=-1)
        hidden = (encoded[:, None] + past) % len(params)
        return hidden[..., None].astype(jnp.float32), dataclasses.replace(cache, tokens=written)

    def logits(self, params, hidden):
        return params[hidden[..., 0].astype(jnp.int32)]

    def commit(self, cache, path, count):
        return dataclasses.replace(cache, length=cache.length + count)


@dataclasses.dataclass(frozen=True)
class ToyLookAhead(WholeVocabulary):
    """Embeddings behind a toy target's text: they are tokens that no vocabulary has."""

    count: int = 2

    @property
    def _model(self):
        return ToyModel(3)

    def start(self, params, prompt, max_len, encoded):
        del encoded
        return self._model.start(params, prompt, max_len).cache

    def extend(self, params, encoded, cache, tokens, count):
        ahead = jnp.broadcast_to(100 + 7 * jnp.arange(self.count), (len(tokens), self.count))
        fed = write_at(jnp.pad(tokens, ((0, 0), (0, self.count))), ahead, count)
        hidden, cache = self._model.extend(params, encoded, cache, fed)
        indices = count[:, None] - 1 + jnp.arange(1 + self.count)
        return jnp.take_along_axis(hidden, indices[..., None], axis=1), cache

    def logits(self, params, hidden):
        return self._model.logits(params, hidden)

    def commit(self, cache, path, count):
        return self._model.commit(cache, path, count)


def numbers_of(tokens, states):
    """What a toy layer's cache holds of tokens and the states from which they were drawn."""
    return 5 * states[..., 0].astype(jnp.int32) + tokens + 1


HEADS = OffsetHeadsDrafter, ToyHeads()
EAGLE = EagleDrafter, ToyLayer()
LOOK_AHEAD = LookAheadDrafter, ToyLookAhead()
DRAFTS = [HEADS, EAGLE, LOOK_AHEAD]


def chain_of(drafter, draft):
    """Makes a drafter of a model and gamma, as those of models."""
    return lambda model, gamma: drafter(draft, Topology.chain(gamma))


def tree_of(drafter, draft):
    """Makes a drafter of a model and a tree, as those of models."""
    return lambda model, tree, independent=False: drafter(draft, tree, independent)
