"""Distributions that a draft with logits draws its guesses from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.standardize import standardize
from specdec.drafters.base import DraftParams
from specdec.models.base import Model
from specdec.models.eagle.model import EagleModel
from specdec.models.heads.model import TargetHeads
from specdec.models.look_ahead.model import LookAheadModel
from specdec.rules import base as rules
from specdec.types import Distribution, Params, PointMass, RuleStates

Logits = Float[Array, "b m n"]
AnyDraft = Model | TargetHeads | EagleModel | LookAheadModel


def ids_of(model: AnyDraft, weights: Params, tokens: Int[Array, "b n"]) -> Int[Array, "b n"]:
    """Token ids of indices into a model's logits, where it does not generate all tokens."""
    found = model.over_vocabulary(weights, PointMass(tokens))
    assert isinstance(found, PointMass)
    return found.tokens


def known(params: DraftParams, states: RuleStates) -> RuleStates:
    """The states of the rules that a draft applies: all, or none."""
    return states if params.sampling.rules else ()


def adjusted(
    model: AnyDraft, params: DraftParams, logits: Logits, states: RuleStates
) -> Float[Array, "b m v"]:
    """A draft's logits as the rules have them, of all tokens; without rules as they are.

    Args:
      states: of the rules that it applies, [B, M, ...].
    """
    if not params.sampling.rules:
        return logits
    whole = over_vocabulary(model, params.weights, logits)
    return rules.adjusted(params.sampling.rules, states, whole)[0]


def distribution_of(model: AnyDraft, params: DraftParams, logits: Logits) -> Distribution:
    """q, over all tokens, of what :func:`adjusted` gave."""
    found = standardize(logits, params.sampling)
    return found if params.sampling.rules else model.over_vocabulary(params.weights, found)


def weights_of(model: AnyDraft, params: DraftParams, logits: Logits) -> Float[Array, "b m v"]:
    """Weights that siblings are drawn by: q, or at temperature 0 the logits themselves."""
    if params.sampling.greedy:
        return logits
    found = distribution_of(model, params, logits)
    assert not isinstance(found, PointMass)
    return found


def likeliest_ids(
    model: AnyDraft, params: DraftParams, tokens: Int[Array, "b n"]
) -> Int[Array, "b n"]:
    """Token ids of indices into the result of :func:`adjusted`."""
    return tokens if params.sampling.rules else ids_of(model, params.weights, tokens)


def over_vocabulary(model: AnyDraft, weights: Params, logits: Logits) -> Float[Array, "b m v"]:
    """Logits of all tokens, -inf for those that a draft does not generate."""
    size = logits.shape[-1]
    shape = jax.eval_shape(lambda x: model.over_vocabulary(weights, x), logits[:1, :1]).shape
    if shape[-1] == size:
        return logits
    ids = ids_of(model, weights, jnp.arange(size)[None])[0]
    whole = jnp.full((*logits.shape[:-1], shape[-1]), -jnp.inf)
    return whole.at[..., ids].set(logits)
