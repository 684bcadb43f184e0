"""A key/value cache that is written by position and rolled back by length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import set_rows
from specdec.core.topology import AnyTopology, Forest, Order
from specdec.models.partitioning import constrain

# batch and heads lead so that attention is a batched product without a transposed copy.
CACHE_AXES = ("batch", "heads", "length", "kv")


@pytree
class KVCache:
    """Keys and values of the committed tokens, and of the last block extended after them."""

    # One [B, H, M, K] array a layer. (One array for all layers would be copied whole at each write
    # on CPU.)
    keys: tuple[Float[Array, "b h m k"], ...]
    values: tuple[Float[Array, "b h m k"], ...]
    # Tokens committed. Entries at and beyond it are dead: never attended to by a later block before
    # they are written again.
    length: Int[Array, " b"]

    def map(self, change: Callable[[Array], Array], length: Int[Array, " b"]) -> KVCache:
        """Each layer's keys and values changed alike, with another length."""
        return KVCache(tuple(map(change, self.keys)), tuple(map(change, self.values)), length)


def init_cache(
    num_layers: int, batch: int, num_heads: int, max_len: int, head_dim: int, dtype: jnp.dtype
) -> KVCache:
    """An empty cache for ``max_len`` tokens a row."""
    shape = (batch, num_heads, max_len, head_dim)

    def layers():
        empty = (jnp.zeros(shape, dtype) for _ in range(num_layers))
        return tuple(constrain(a, CACHE_AXES) for a in empty)

    return KVCache(layers(), layers(), jnp.zeros((batch,), jnp.int32))


def write(
    entries: Float[Array, "b h m k"], new: Float[Array, "b h t k"], start: Int[Array, " b"]
) -> Float[Array, "b h m k"]:
    """SETS positions start[b] .. start[b] + T - 1 of each row.

    A start that would run past the end may be moved back (``dynamic_update_slice``); only finished
    rows, whose output is fixed, can be there.
    """
    return constrain(set_rows(entries, new.astype(entries.dtype), start, axis=2), CACHE_AXES)


def node_depths(topology: AnyTopology, count: int, after: int) -> Int[Array, "*b t"]:
    """Depths of nodes after..after + count - 1, [T], or [B, T] for a traced topology."""
    if topology.is_chain:
        return after + jnp.arange(count)
    return jnp.asarray(topology.depths())[..., after : after + count]


def token_positions(
    topology: Order, length: Int[Array, " b"], count: int, after: int
) -> Int[Array, "b t"]:
    """Positions in their own sequences of nodes after..after + count - 1."""
    if isinstance(topology, Forest):
        return topology.positions
    return length[:, None] + node_depths(topology, count, after)


def block_mask(
    topology: Order, length: Int[Array, " b"], max_len: int, count: int, after: int
) -> Bool[Array, "b t m"]:
    """Which cache slots each node attends to: the committed ones, its ancestors and itself.

    Args:
      count: T; the nodes are after..after + T - 1 of the block.
    """
    if isinstance(topology, Forest):
        return topology.seen
    inside = jnp.arange(max_len) - length[:, None]  # [B, M] index within the block
    if topology.is_chain:
        return inside[:, None, :] <= after + jnp.arange(count)[:, None]
    size = after + count
    family = jnp.asarray(topology.ancestors())[..., after:size, :size]
    family = jnp.broadcast_to(family, (len(length), count, size))
    at = jnp.broadcast_to(jnp.clip(inside, 0, size - 1)[:, None], (len(length), count, max_len))
    in_block = jnp.take_along_axis(family, at, axis=2) & (inside[:, None, :] < size)
    return (inside[:, None, :] < 0) | in_block


def slot_positions(
    topology: Order, length: Int[Array, " b"], max_len: int, size: int
) -> Int[Array, "b m"]:
    """Position of each slot's token in its own sequence, while a block is being scored.

    Args:
      size: nodes of the block so far.
    """
    if isinstance(topology, Forest):
        return topology.entries
    slots = jnp.broadcast_to(jnp.arange(max_len), (length.shape[0], max_len))
    if topology.is_chain:
        return slots
    depth = jnp.broadcast_to(node_depths(topology, size, 0), (len(length), size))
    inside = jnp.clip(slots - length[:, None], 0, size - 1)
    in_block = length[:, None] + jnp.take_along_axis(depth, inside, axis=1)
    return jnp.where(slots < length[:, None], slots, in_block)


def commit(cache: KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]) -> KVCache:
    """Keeps ``count[b]`` of the tokens just written; a negative count forgets committed ones.

    Args:
      path: [B, T] block nodes to keep, in order; they are moved together. What follows the first
        ``count[b]`` may be anything. None when they already are the first of the block, as in a
        chain.
    """
    length = cache.length + count
    if path is None:
        return dataclasses.replace(cache, length=length)
    slots = (cache.length[:, None] + path)[:, None, :, None]

    def keep(entries):
        # Filler of the path may point anywhere; what it moves is dead, but must not be NaN.
        kept = jnp.take_along_axis(entries, slots, axis=2, mode="clip")
        return write(entries, kept, cache.length)

    return cache.map(keep, length)
