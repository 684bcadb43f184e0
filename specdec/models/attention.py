"""Attention of a call's tokens to keys and values in a cache.

A cache has [B, H, M, K], a head apart from the others, or [B, 1, M, I], all heads of a token side
by side as they come from a product. On a TPU the former takes small transposed copies in each
layer, which for a small model cost as much as attention itself. With the latter a query of one head
is a row that is zero but for that head: products are H times as large, and where the rows of all
heads together fit the matrix unit they take no longer.

Where R heads of queries share a key and a value, a cache has G = H / R of them, and the queries of
a key are as R tokens to it.

Shapes: B batch, T tokens of a call, M entries, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import constrain

Mix: TypeAlias = Callable[[Array, Array], Array]  # The products' of weights and values.
NEG_INF = -1e10  # T5X's mask value: finite in bfloat16, exp() of it is exactly 0.


def entries(x: Float[Array, "b t i"], heads: int) -> Float[Array, "b h t k"]:
    """Keys or values as a cache of so many heads has them; of 1, side by side."""
    split = x.reshape(*x.shape[:2], heads, -1)
    return constrain(split.transpose(0, 2, 1, 3), CACHE_AXES)


def attend(
    ops: ModuleType, heads: int, query: Float[Array, "b t i"], keys: Float[Array, "b g m k"],
    values: Float[Array, "b g m k"], bias: Float[Array, "#b #h #t m"],
    softcap: float | None = None, *, encoded: bool = False,
) -> Float[Array, "b t i"]:  # fmt: skip
    """softmax(query keys + bias) values, head by head; the softmax in float32.

    Args:
      ops: the products of the model's layout.
      heads: H. Keys and values may have them side by side, or be shared by several.
      bias: of the scores; what is not to be seen has a large negative number. Where keys are shared
        it is that of all heads.
      softcap: C, where scores are C tanh(score / C) before the bias.
      encoded: keys and values are an encoder's, and values as ``ops.encoded_values`` has them.
    """
    batch, count, width = query.shape
    mix = ops.mix_encoded if encoded else ops.mix
    side_by_side = keys.shape[3] > width // heads
    if side_by_side:
        own = (jnp.arange(width) // (width // heads) == jnp.arange(heads)[:, None])[:, None]
        rows = jnp.where(own, query[:, None], 0).reshape(batch, 1, heads * count, width)
        bias = jnp.broadcast_to(bias, (len(bias), heads, count, bias.shape[3]))
        bias = bias.reshape(len(bias), 1, heads * count, -1)
    else:
        own, rows = None, sharing(query, heads, keys.shape[1])
        bias = _for_sharing(bias, rows.shape[2] // count)
        size = rows.dtype.itemsize * rows.size // rows.shape[3] * keys.shape[2]
        if count > 1 and size > ops.SCORES_AT_ONCE:
            return _side_by_side(_head_by_head(ops, rows, keys, values, bias, softcap, mix), count)
    out = _mixed(ops, rows, keys, values, bias, softcap, mix)
    if own is not None:
        return jnp.sum(jnp.where(own, out.reshape(batch, heads, count, width), 0), axis=1)
    return _side_by_side(out, count)


def _mixed(
    ops: ModuleType, rows: Float[Array, "b g t k"], keys: Float[Array, "b g m k"],
    values: Float[Array, "b g ..."], bias: Float[Array, "#b #g #t m"], softcap: float | None,
    mix: Mix,
) -> Float[Array, "b g t k"]:  # fmt: skip
    (weights,), total = ops.softmax_parts(_capped(ops.scores(rows, keys), softcap) + bias)
    return mix(weights.astype(values.dtype), values) / total.astype(values.dtype)


def _head_by_head(
    ops: ModuleType, rows: Float[Array, "b g t k"], keys: Float[Array, "b g m k"],
    values: Float[Array, "b g ..."], bias: Float[Array, "#b #g #t m"], softcap: float | None,
    mix: Mix,
) -> Float[Array, "b g t k"]:  # fmt: skip
    """Attention of one head of one row after the other: the scores of all are too many at once."""
    groups = rows.shape[1]

    def one(given: tuple[Array, ...]) -> Array:
        number, *parts = given
        row, key, value = (part[None, None] for part in parts)
        at = number // groups % len(bias), number % groups % bias.shape[1]
        own = jax.lax.dynamic_slice(bias, (*at, 0, 0), (1, 1, *bias.shape[2:]))
        return _mixed(ops, row, key, value, own, softcap, mix)[0, 0]

    flat = (each.reshape(-1, *each.shape[2:]) for each in (rows, keys, values))
    return jax.lax.map(one, (jnp.arange(len(rows) * groups), *flat)).reshape(rows.shape)


def attend_to_both(
    ops: ModuleType, heads: int, query: Float[Array, "b t i"],
    own: tuple[Float[Array, "b g m k"], Float[Array, "b g m k"], Float[Array, "b 1 t m"]],
    shared: tuple[Float[Array, "e g s k"], Float[Array, "e g s k"], Float[Array, "e 1 1 s"]],
    softcap: float | None = None,
) -> Float[Array, "b t i"]:  # fmt: skip
    """:func:`attend` with one softmax over two sets of keys, values and biases.

    Args:
      shared: an encoder's, of E rows, each of which B / E rows that follow each other attend to. No
        heads are side by side.
    """
    (keys, values, bias), (more_keys, more_values, more_bias) = own, shared
    batch, count, width = query.shape
    groups = keys.shape[1]
    rows = sharing(query, heads, groups)
    repeats, rows_each = rows.shape[2] // count, batch // len(more_keys)
    scores = _capped(ops.scores(rows, keys), softcap) + _for_sharing(bias, repeats)
    # Rows that share an encoding are as tokens of one row to it.
    together = sharing(query.reshape(len(more_keys), -1, width), heads, groups)
    more = _capped(ops.scores(together, more_keys), softcap) + more_bias
    apart = (len(more), groups, repeats, rows_each, count, -1)
    more = more.reshape(apart).transpose(0, 3, 1, 2, 4, 5)
    more = more.reshape(*scores.shape[:3], -1)
    weights, total = ops.softmax_parts(scores, more)
    weights, rest = (each.astype(values.dtype) for each in weights)
    out = ops.mix(weights, values)
    rest = rest.reshape(-1, rows_each, groups, repeats, count, more.shape[3])
    rest = rest.transpose(0, 2, 3, 1, 4, 5).reshape(*together.shape[:3], -1)
    rest = _side_by_side(ops.mix_encoded(rest, more_values), rows_each * count)
    rest = rest.reshape(query.shape)
    total = _side_by_side(jnp.broadcast_to(total, rows.shape), count)
    return ops.in_memory(_side_by_side(out, count) + rest) / total.astype(values.dtype)


def sharing(query: Float[Array, "b t i"], heads: int, groups: int) -> Float[Array, "b g rt k"]:
    """Queries as rows of the keys that they share."""
    rows = entries(query, groups)
    if heads == groups:
        return rows
    batch, _, count, _ = rows.shape
    rows = rows.reshape(batch, groups, count, heads // groups, -1).swapaxes(2, 3)
    return rows.reshape(batch, groups, count * (heads // groups), -1)


def _side_by_side(rows: Float[Array, "b g rt k"], count: int) -> Float[Array, "b t i"]:
    """The inverse of :func:`sharing`, of ``count`` tokens."""
    batch, groups, size, _ = rows.shape
    if size != count:
        rows = rows.reshape(batch, groups, size // count, count, -1)
        rows = rows.transpose(0, 3, 1, 2, 4)
        return rows.reshape(batch, count, -1)
    out = rows.transpose(0, 2, 1, 3)
    return out.reshape(*out.shape[:2], -1)


def _for_sharing(bias: Float[Array, "#b #h #t m"], repeats: int) -> Float[Array, "#b #h #rt m"]:
    """Bias for rows of :func:`sharing`."""
    return bias if repeats == 1 or bias.shape[2] == 1 else jnp.tile(bias, (1, 1, repeats, 1))


def _capped(scores: Array, softcap: float | None) -> Array:
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)
