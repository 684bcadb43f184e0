"""Keys by (seed, row, block, purpose), and drawing tokens from one uniform number each.

A row's numbers depend on its own id alone, never on its neighbours in the batch or the number of
devices. Blocks, not token positions, index the keys: a position can be drafted more than once, and
reusing its numbers biases verifiers that look at the whole block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from specdec.core.pytrees import pytree
from specdec.core.reductions import max_last, min_last, sum_last
from specdec.core.residuals import take_position
from specdec.types import Distribution, PointMass, Purpose, Seed

_SEGMENT = 64  # Width of one segment of the two-level inverse CDF.


def seed_words(seed: int) -> UInt32[np.ndarray, " 2"]:
    """A seed of 64 bits, taken modulo 2^64, as :func:`row_keys` takes it."""
    seed %= 2**64
    return np.array([seed >> 32, seed % 2**32], np.uint32)


def row_keys(seed: Seed, row_ids: Int[Array, " b"]) -> Array:
    """One key a row, [B].

    Args:
      seed: a number of 32 bits, or :func:`seed_words`, which gives the same keys for it.
    """
    seed = jnp.asarray(seed)
    words = seed if seed.ndim else jnp.stack([jnp.uint32(0), seed.astype(jnp.uint32)])
    key = jax.random.wrap_key_data(words, impl="threefry2x32")  # Whatever JAX's default is.
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(row_ids)


@pytree
class BlockRandom:
    """A block's :class:`~specdec.types.RandomSource`; ``keys`` [B] hold the block number."""

    keys: Array

    @classmethod
    def of(cls, keys: Array, block: Int[Array, " b"]) -> BlockRandom:
        """Folds the number of each row's block into its key."""
        return cls(jax.vmap(jax.random.fold_in)(keys, block))

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """``count`` numbers in [0, 1) a row, independent across purposes."""

        def draw(key):
            return jax.random.uniform(jax.random.fold_in(key, int(purpose)), (count,))

        return jax.vmap(draw)(self.keys)


def _first_beyond(weights: Float[Array, "b v"], point: Float[Array, " b"]) -> Int[Array, " b"]:
    """First index with positive weight whose cumulative weight exceeds ``point``.

    Rounding can leave none; then the last index with positive weight.
    """
    size = weights.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)
    positive = weights > 0
    beyond = positive & (jnp.cumsum(weights, axis=-1) > point[:, None])
    first = min_last(jnp.where(beyond, index, size))
    return jnp.minimum(first, max_last(jnp.where(positive, index, 0)))


def draw(weights: Float[Array, "b v"], uniform: Float[Array, " b"]) -> Int[Array, " b"]:
    """Inverse-CDF draw from unnormalised weights: token x with probability weights[x] / sum.

    One uniform a row instead of V Gumbel numbers; the CDF is inverted in two levels (segments of
    64, then inside one) because a cumulative sum over a 32k vocabulary costs more than a small
    draft model. A token of zero weight is never drawn.

    Args:
      weights: [B, V], non-negative, not all zero in a row.
      uniform: [B], in [0, 1).
    """
    batch, vocab = weights.shape
    segments = jnp.pad(weights, ((0, 0), (0, -vocab % _SEGMENT))).reshape(batch, -1, _SEGMENT)
    mass = sum_last(segments)
    cumulative = jnp.cumsum(mass, axis=-1)
    point = uniform * cumulative[:, -1]
    segment = _first_beyond(mass, point)
    before = take_position(cumulative, segment) - take_position(mass, segment)
    inside = _first_beyond(take_position(segments, segment), point - before)
    return segment * _SEGMENT + inside


def draw_from(distribution: Distribution, uniforms: Float[Array, "b n"]) -> Int[Array, "b n"]:
    """A token from each distribution [B, N, V]; point masses need no random number."""
    if isinstance(distribution, PointMass):
        return distribution.tokens
    batch, count, vocab = distribution.shape
    flat = draw(distribution.reshape(batch * count, vocab), uniforms.reshape(-1))
    return flat.reshape(batch, count)
