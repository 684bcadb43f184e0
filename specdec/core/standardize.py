"""Logits to the distribution that is sampled: one function for target, draft and reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core import platforms
from specdec.core.reductions import max_last, min_last, sum_last, sum_parts
from specdec.types import Distribution, PointMass, Sampling

_SMALL = 256  # 32-bit numbers.


def argmax(logits: Float[Array, "*shape v"]) -> Int[Array, "*shape"]:
    """Index of the largest entry, the lowest among equals.

    The same result as ``jnp.argmax`` but for NaN; two plain reductions vectorise on CPU where
    XLA's pairwise (value, index) reduction does not.
    """
    if platforms.current() != platforms.CPU:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    size = logits.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)
    largest = logits == max_last(logits)[..., None]
    # A row of NaN equals nothing; clamp so that the result is a token all the same.
    return jnp.minimum(min_last(jnp.where(largest, index, size)), size - 1)


def _ordered(x: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """float32 as integers of the same order: the larger number has the larger integer."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, jnp.iinfo(jnp.int32).min - bits, bits)


def _lowest_kept(
    order: Int[Array, "*shape v"], weights: Float[Array, "*shape v"], limit: Float[Array, ...]
) -> Int[Array, "*shape"]:
    """The smallest integer such that the entries above it weigh less than ``limit``.

    By bisection, 32 passes over the entries; in 16 parts 8, where passes cost more than arithmetic:
    no sort, and ``limit`` may be traced. Entries that are tied with the last one kept are kept too.

    Args:
      order: the entries as integers; see :func:`_ordered`.
      weights: theirs, not negative.
      limit: positive; broadcasts to [*shape].
    """

    # XLA compiles a loop over less than a kilobyte in a way of its own, which ends the process on
    # sum_last's reduction under decode_jit's options.
    total = sum_last if order.size >= _SMALL else lambda x: jnp.sum(x, axis=-1)

    bits = platforms.current().bits_a_pass
    limit = jnp.asarray(limit)[..., None]

    def narrow(i, low):
        # The answer is in low..low + 2^bits size - 1; beyond the largest integer numbers wrap.
        size = jax.lax.shift_left(jnp.int32(1), 32 - bits * (i + 1))
        last = low[..., None] + jnp.arange(1, 2**bits) * size - 1  # Of each part but the last.
        above = order[..., None, :] > last[..., None]
        heavy = total(jnp.where(above, weights[..., None, :], 0.0)) >= limit
        return low + jnp.sum(heavy, axis=-1, dtype=jnp.int32) * size

    low = jnp.full(order.shape[:-1], jnp.iinfo(jnp.int32).min, jnp.int32)
    return jax.lax.fori_loop(0, 32 // bits, narrow, low)


def _warped_parts(
    logits: Float[Array, "*shape v"], sampling: Sampling
) -> tuple[Float[Array, "*shape v"], Float[Array, "*shape 1"]]:
    """Unnormalised probabilities after temperature and the cuts, and their sum.

    The cuts are top-k, top-p, min-p and typical-p, in that order. top-k keeps x if fewer than k
    tokens are likelier, top-p if those that are likelier have less than p together, typical-p if
    those that are more typical have. So tokens tied with the last one kept are kept too, and the
    result does not depend on the order of the vocabulary.
    Source: Leviathan et al. 2023, section 2.2 ("standardized sampling").

    Args:
      logits: [..., V], any float dtype; computed in float32.
      sampling: not greedy. Its numbers may be traced.
    """
    # Kept in memory: computed again it could be rounded otherwise, and what is compared with itself
    # below be left out. For the same reason it is logits that are compared, not what is made of
    # them; temperature leaves their order alone.
    logits = jax.lax.optimization_barrier(logits.astype(jnp.float32))
    largest = max_last(logits)[..., None]

    def weigh(logits, largest):
        # Subtracted first: behind a division by a tiny temperature its rounding would be large.
        return jnp.exp((logits - largest) / sampling.temperature)

    def top_k(logits, largest, nothing):
        del largest, nothing
        order = _ordered(logits)
        return _lowest_kept(order, jnp.ones_like(logits), sampling.top_k.astype(jnp.float32))

    def top_p(logits, largest, below):
        order = _ordered(logits)
        weights = jnp.where(order >= below[..., None], weigh(logits, largest), 0.0)
        return jnp.maximum(below, _lowest_kept(order, weights, sampling.top_p * sum_last(weights)))

    def keep(logits, largest, below):
        del logits, largest
        return below

    # Nearly always nothing is cut off, and then a comparison is all that is left of it.
    below = jnp.full(logits.shape[:-1], jnp.iinfo(jnp.int32).min, jnp.int32)
    few = (sampling.top_k > 0) & (sampling.top_k < logits.shape[-1])
    below = jax.lax.cond(few, top_k, keep, logits, largest, below)
    below = jax.lax.cond(sampling.top_p < 1, top_p, keep, logits, largest, below)
    kept = _ordered(logits) >= below[..., None]
    weights = jnp.where(kept, weigh(logits, largest), 0.0)
    if sampling.min_p is not None:
        weights = jnp.where(weights >= sampling.min_p, weights, 0.0)
    if sampling.typical_p is not None:
        weights = _typical(logits, weights, sampling.temperature, sampling.typical_p)
    return sum_parts(weights)


def _typical(
    logits: Float[Array, "*shape v"], weights: Float[Array, "*shape v"],
    temperature: Float[Array, ""], typical_p: Float[Array, ""],
) -> Float[Array, "*shape v"]:  # fmt: skip
    """The weights of the most typical tokens; 0 for all others."""
    total = sum_last(weights)[..., None]
    shares = weights / total
    # -log p but for what is the same for all tokens, in it and in its mean, the entropy.
    surprise = -(logits - max_last(logits)[..., None]) / temperature
    # A token without weight may be infinitely surprising.
    mean = sum_last(jnp.where(shares > 0, shares * surprise, 0.0))[..., None]
    typical = _ordered(-jax.lax.optimization_barrier(jnp.abs(surprise - mean)))
    lowest = _lowest_kept(typical, shares, typical_p * sum_last(shares))
    return jnp.where(typical >= lowest[..., None], weights, 0.0)


def standardize(
    logits: Float[Array, "b n v"], sampling: Sampling, *, keep_probs: bool = False
) -> Distribution:
    """The distribution to sample from, [B, N, V] in float32, or point masses when greedy.

    softmax(typical_p(min_p(top_p(top_k(logits / temperature))))); argmax at temperature 0.
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
        # Logits that are computed again for this sum may differ from their own maximum by rounding.
        best = jnp.arange(logits.shape[-1]) == tokens[..., None]
        return PointMass(tokens, jnp.where(best, 1.0, relative))
    weights, total = _warped_parts(logits, sampling)
    return weights / total


def has_nan(logits: Float[Array, "b n v"], distribution: Distribution) -> Bool[Array, "b n"]:
    """Where logits hold a NaN, which leaves nothing of :func:`standardize`'s distribution."""
    if isinstance(distribution, PointMass):
        return jnp.isnan(max_last(logits))
    return jnp.isnan(distribution[..., 0])  # One NaN makes the sum, and so all entries, NaN.


def spread(distribution: Distribution, tokens: Int[Array, " n"], vocab_size: int) -> Distribution:
    """A distribution over ``tokens``, as one over the whole vocabulary: 0 for all others.

    Args:
      distribution: [B, N, n], or point masses at indices into ``tokens``.
    """
    if isinstance(distribution, PointMass):
        return PointMass(tokens[distribution.tokens])
    whole = jnp.zeros((*distribution.shape[:-1], vocab_size), distribution.dtype)
    return whole.at[..., tokens].set(distribution)
