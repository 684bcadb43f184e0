"""Attention of a call's tokens to keys and values in a cache.

A cache has [B, H, M, K], a head apart from the others, or [B, 1, M, I], all heads of a token side
by side as they come from a product. On a TPU the former takes small transposed copies in each
layer, which for a small model cost as much as attention itself. With the latter a query of one head
is a row that is zero but for that head: products are H times as large, and where the rows of all
heads together fit the matrix unit they take no longer.

Shapes: B batch, T tokens of a call, M entries, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

from types import ModuleType

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.reductions import softmax_parts
from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import constrain


def entries(x: Float[Array, "b t i"], heads: int) -> Float[Array, "b h t k"]:
    """Keys or values as a cache of so many heads has them; of 1, side by side."""
    split = x.reshape(*x.shape[:2], heads, -1)
    return constrain(split.transpose(0, 2, 1, 3), CACHE_AXES)


def attend(
    ops: ModuleType, heads: int, query: Float[Array, "b t i"], keys: Float[Array, "b h m k"],
    values: Float[Array, "b h m k"], bias: Float[Array, "#b #h #t m"],
) -> Float[Array, "b t i"]:  # fmt: skip
    """softmax(query keys + bias) values, head by head; the softmax in float32.

    Args:
      ops: the products of the model's layout.
      heads: H. Keys and values may have them side by side.
      bias: of the scores; what is not to be seen has a large negative number.
    """
    side_by_side = keys.shape[1] < heads
    batch, count, width = query.shape
    if side_by_side:
        own = (jnp.arange(width) // (width // heads) == jnp.arange(heads)[:, None])[:, None]
        rows = jnp.where(own, query[:, None], 0).reshape(batch, 1, heads * count, width)
        bias = jnp.broadcast_to(bias, (len(bias), heads, count, bias.shape[3]))
        bias = bias.reshape(len(bias), 1, heads * count, -1)
    else:
        own, rows = None, entries(query, heads)
    weights, total = softmax_parts(ops.scores(rows, keys) + bias)
    out = ops.mix(weights.astype(values.dtype), values) / total.astype(values.dtype)
    if own is not None:
        return jnp.sum(jnp.where(own, out.reshape(batch, heads, count, width), 0), axis=1)
    out = out.transpose(0, 2, 1, 3)
    return out.reshape(*out.shape[:2], -1)
