"""A key/value cache that is written by position and rolled back by length."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import set_rows
from specdec.core.topology import AnyTopology, Forest, Order
from specdec.models.partitioning import constrain

# batch and heads lead so that attention is a batched product without a transposed copy.
CACHE_AXES = ("batch", "heads", "length", "kv")
# Keys or values of all layers: an array for each, or stacked where layers are run in a loop. Of
# bfloat16 these are the bits: to write such numbers XLA widens the whole array on CPU.
Entries: TypeAlias = tuple[Float[Array, "b h m k"], ...] | Float[Array, "b l h m k"]
Number: TypeAlias = int | Int[Array, ""]  # A layer's; traced in a loop.


@pytree
class KVCache:
    """Keys and values of the committed tokens, and of the last block extended after them."""

    keys: Entries
    values: Entries
    # Tokens committed. Entries at and beyond it are dead: never attended to by a later block before
    # they are written again.
    length: Int[Array, " b"]

    @property
    def max_len(self) -> int:
        """M."""
        return jax.tree.leaves(self.keys)[0].shape[-2]


def init_cache(
    num_layers: int, batch: int, num_heads: int, max_len: int, head_dim: int, dtype: jnp.dtype, *,
    stacked: bool,
) -> KVCache:  # fmt: skip
    """An empty cache for ``max_len`` tokens a row."""
    shape = (batch, num_heads, max_len, head_dim)

    def layers() -> Entries:
        if stacked:
            stored = jnp.uint16 if dtype == jnp.bfloat16 else dtype
            return jnp.zeros((batch, num_layers, *shape[1:]), stored)
        return tuple(constrain(jnp.zeros(shape, dtype), CACHE_AXES) for _ in range(num_layers))

    return KVCache(layers(), layers(), jnp.zeros((batch,), jnp.int32))


def of_layer(entries: Entries, number: Number) -> Float[Array, "b h m k"]:
    """One layer's keys or values."""
    if isinstance(entries, tuple):
        assert isinstance(number, int)
        return entries[number]
    own = jax.lax.dynamic_index_in_dim(
        entries, number, axis=1, keepdims=False, allow_negative_indices=False
    )
    return jax.lax.bitcast_convert_type(own, jnp.bfloat16) if own.dtype == jnp.uint16 else own


def with_layer(entries: Entries, number: Number, own: Float[Array, "b h m k"]) -> Entries:
    """All layers' with another array for one of them, where each has its own."""
    assert isinstance(entries, tuple)
    assert isinstance(number, int)
    return (*entries[:number], own, *entries[number + 1 :])


def write(
    entries: Entries, number: Number, new: Float[Array, "b h t k"], start: Int[Array, " b"]
) -> Entries:
    """SETS positions start[b] .. start[b] + T - 1 of each row in one layer.

    A start that would run past the end may be moved back (``dynamic_update_slice``); only finished
    rows, whose output is fixed, can be there.
    """
    if isinstance(entries, tuple):
        return with_layer(entries, number, _written(of_layer(entries, number), new, start))
    new = new[:, None]
    if entries.dtype == jnp.uint16:
        new = jax.lax.bitcast_convert_type(new.astype(jnp.bfloat16), jnp.uint16)
    new = new.astype(entries.dtype)

    if len(new) == 1:  # In place.
        return jax.lax.dynamic_update_slice(entries, new, (0, number, 0, start[0], 0))

    def put(row: Int[Array, ""], entries: Array) -> Array:
        own = jax.lax.dynamic_slice_in_dim(new, row, 1)
        return jax.lax.dynamic_update_slice(entries, own, (row, number, 0, start[row], 0))

    # In place, too. A batched update would be a loop with copies.
    return jax.lax.fori_loop(0, len(new), put, entries)


def _written(
    entries: Float[Array, "b h m k"], new: Float[Array, "b h t k"], start: Int[Array, " b"]
) -> Float[Array, "b h m k"]:
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


def apart(
    topology: AnyTopology, length: Int[Array, " b"], max_len: int
) -> tuple[Forest, Int[Array, "b t t"]]:
    """A tree's nodes, each behind its ancestors alone, and these, in order, with it.

    Behind a node's own path are others that it does not see.
    """
    family = jnp.asarray(topology.ancestors())
    paths = jnp.argsort(~family, axis=-1, stable=True)  # A parent comes before its children.
    paths = jnp.broadcast_to(paths, (len(length), *paths.shape[-2:]))
    positions = length[:, None] + node_depths(topology, topology.size, 0)
    slots = jnp.arange(max_len)
    entries = jnp.broadcast_to(slots, (len(length), max_len))
    return Forest(slots <= positions[..., None], positions, entries), paths


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

    def keep(entries: Array) -> Array:
        # Filler of the path may point anywhere; what it moves is dead, but must not be NaN.
        if entries.ndim == 4:
            return _written(
                entries, jnp.take_along_axis(entries, slots, axis=2, mode="clip"), cache.length
            )
        kept = jnp.take_along_axis(entries, slots[:, None], axis=3, mode="clip")
        return set_rows(entries, kept, cache.length, axis=3)

    keys, values = jax.tree.map(keep, (cache.keys, cache.values))
    return KVCache(keys, values, length)
