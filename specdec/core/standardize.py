"""Logits to the distribution that is sampled: one function for target, draft and reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.reductions import max_last, min_last, softmax
from specdec.types import Distribution, PointMass, SamplingConfig


def argmax(logits: Float[Array, "*shape v"]) -> Int[Array, "*shape"]:
    """Index of the largest entry, the lowest among equals.

    The same result as ``jnp.argmax``; two plain reductions vectorise on CPU where XLA's
    pairwise (value, index) reduction does not.
    """
    size = logits.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)
    largest = logits == max_last(logits)[..., None]
    # A row of NaN equals nothing; clamp so that the result is a token all the same.
    return jnp.minimum(min_last(jnp.where(largest, index, size)), size - 1)


def warp(logits: Float[Array, "*shape v"], sampling: SamplingConfig) -> Float[Array, "*shape v"]:
    """Logits after temperature, top-k and top-p in that order; removed tokens are -inf.

    Tokens tied with the last one kept are kept too, so that the result does not depend on the
    order of the vocabulary. Source: Leviathan et al. 2023, section 2.2 ("standardized sampling").

    Args:
      logits: [..., V], any float dtype; computed in float32.
      sampling: temperature must be positive.

    Raises:
      ValueError: if ``sampling`` is greedy.
    """
    if sampling.greedy:
        raise ValueError("warp() needs a positive temperature; argmax is standardize()'s.")
    logits = logits.astype(jnp.float32) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits >= kth, logits, -jnp.inf)
    if sampling.top_p < 1:
        ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
        probs = jax.nn.softmax(ordered, axis=-1)
        mass_before = jnp.cumsum(probs, axis=-1) - probs
        # The first token is kept always: its mass before is 0 < top_p.
        last_kept = jnp.min(
            jnp.where(mass_before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True
        )
        logits = jnp.where(logits >= last_kept, logits, -jnp.inf)
    return logits


def standardize(
    logits: Float[Array, "b n v"], sampling: SamplingConfig, *, keep_probs: bool = False
) -> Distribution:
    """The distribution to sample from, [B, N, V] in float32, or point masses when greedy.

    softmax(top_p(top_k(logits / temperature))); argmax at temperature 0.
    Source: Leviathan et al. 2023, section 2.2.

    Args:
      keep_probs: whether point masses are to have their ``relative`` probabilities.
    """
    if sampling.greedy:
        tokens = argmax(logits)
        if not keep_probs:
            return PointMass(tokens)
        exact = logits.astype(jnp.float32)
        relative = jnp.exp(exact - max_last(exact)[..., None])
        # Logits that are computed anew for this sum may differ from their own maximum by rounding.
        best = jnp.arange(logits.shape[-1]) == tokens[..., None]
        return PointMass(tokens, jnp.where(best, 1.0, relative))
    return softmax(warp(logits, sampling))


def spread(distribution: Distribution, tokens: Int[Array, " n"], vocab_size: int) -> Distribution:
    """A distribution over ``tokens``, as one over the whole vocabulary: 0 for all others.

    Args:
      distribution: [B, N, n], or point masses at indices into ``tokens``.
    """
    if isinstance(distribution, PointMass):
        return PointMass(tokens[distribution.tokens])
    whole = jnp.zeros((*distribution.shape[:-1], vocab_size), distribution.dtype)
    return whole.at[..., tokens].set(distribution)
