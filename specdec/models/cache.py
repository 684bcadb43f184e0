"""A key/value cache that is written by position and rolled back by length."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.models.partitioning import constrain
from specdec.types import Topology, pytree

# batch and heads lead so that attention is a batched product without a transposed copy.
CACHE_AXES = ("batch", "heads", "length", "kv")


@pytree
class KVCache:
    """Keys and values of the committed tokens, and of the last block extended after them.

    Attributes:
      keys, values: one [B, H, M, K] array a layer. (One array for all layers would be copied
        whole at each write on CPU.)
      length: [B] tokens committed. Entries at and beyond it are dead: never attended to by a later
        block before they are written again.
    """

    keys: tuple[Float[Array, "b h m k"], ...]
    values: tuple[Float[Array, "b h m k"], ...]
    length: Int[Array, " b"]


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

    A start that would run past the end is moved back (``dynamic_update_slice``); only finished
    rows, whose output is fixed, can be there.
    """
    new = new.astype(entries.dtype)
    if entries.shape[0] == 1:  # In place; XLA's CPU scatter is a loop.
        written = jax.lax.dynamic_update_slice(entries, new, (0, 0, start[0], 0))
        return constrain(written, CACHE_AXES)

    def row(entry, update, at):
        return jax.lax.dynamic_update_slice(entry, update, (0, at, 0))

    return constrain(jax.vmap(row)(entries, new, start), CACHE_AXES)


def depths(topology: Topology) -> np.ndarray:
    """[T] distance of each node from the last committed token, minus one."""
    result = np.zeros(len(topology.parents), np.int32)
    for i, parent in enumerate(topology.parents):
        result[i] = 0 if parent < 0 else result[parent] + 1
    return result


def ancestors(topology: Topology) -> np.ndarray:
    """[T, T] whether node j is node i or one of its ancestors."""
    size = len(topology.parents)
    result = np.eye(size, dtype=bool)
    for i, parent in enumerate(topology.parents):
        if parent >= 0:
            result[i] |= result[parent]
    return result


def block_mask(topology: Topology, length: Int[Array, " b"], max_len: int) -> Bool[Array, "b t m"]:
    """Which cache slots each node attends to: the committed ones, its ancestors and itself."""
    slots = jnp.arange(max_len)
    inside = slots - length[:, None]  # [B, M] index within the block
    if topology.is_chain:
        return inside[:, None, :] <= jnp.arange(len(topology.parents))[:, None]
    family = jnp.asarray(ancestors(topology))
    size = family.shape[0]
    in_block = family[:, jnp.clip(inside, 0, size - 1)].transpose(1, 0, 2)
    return jnp.where(inside[:, None, :] < 0, True, in_block & (inside[:, None, :] < size))


def slot_positions(topology: Topology, length: Int[Array, " b"], max_len: int) -> Int[Array, "b m"]:
    """Position in its own sequence of what each slot holds, while a block is being scored."""
    slots = jnp.broadcast_to(jnp.arange(max_len), (length.shape[0], max_len))
    if topology.is_chain:
        return slots
    depth = jnp.asarray(depths(topology))
    inside = jnp.clip(slots - length[:, None], 0, depth.shape[0] - 1)
    return jnp.where(slots < length[:, None], slots, length[:, None] + depth[inside])


def commit(cache: KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]) -> KVCache:
    """Keeps ``count[b]`` of the tokens just written; a negative count forgets committed ones.

    Args:
      path: [B, T] block nodes to keep, in order; they are moved together. None when they already
        are the first ``count`` of the block, as in a chain.
    """
    if path is None:
        return dataclasses.replace(cache, length=cache.length + count)

    def keep(entries):
        slots = cache.length[:, None] + path
        kept = jnp.take_along_axis(entries, slots[:, None, :, None], axis=2)
        return write(entries, kept, cache.length)

    return KVCache(
        tuple(keep(k) for k in cache.keys),
        tuple(keep(v) for v in cache.values),
        cache.length + count,
    )
