"""Arrays from a host to the devices of a mesh and back.

The processes of a mesh over several hosts run one program together. Each places what its own
devices hold, gets the whole of every result, and decides by what process 0 has measured.
"""

from __future__ import annotations

import abc
import functools
import math
import pickle
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from numpy.typing import ArrayLike

from specdec.core.processes import exchange
from specdec.models.partitioning import Axes, Partitioning
from specdec.types import Params

T = TypeVar("T")
Index = tuple[slice, ...]
Bounds = tuple[tuple[int, int], ...]  # Of a part: where it begins and ends along each axis.


class Readable(abc.ABC):
    """An array that is read when it is cut, as a NumPy array is."""

    shape: tuple[int, ...]

    @abc.abstractmethod
    def __getitem__(self, part: Index) -> np.ndarray: ...


def place(array: ArrayLike | Readable, axes: Axes, partitioning: Partitioning | None) -> jax.Array:
    """An array on its devices, straight from the host: none holds more than its own part.

    Args:
      array: a JAX array, a :class:`Readable`, or anything else that NumPy reads.
      axes: its logical axes.
      partitioning: None for the default device.
    """
    if partitioning is None:
        # A put compiles nothing; jnp.asarray does, for each shape.
        return array if isinstance(array, jax.Array) else jax.device_put(np.asarray(array))
    sharding = partitioning.sharding(axes)
    if isinstance(array, jax.Array):
        if array.is_fully_addressable == sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        array = np.asarray(array)
    return read_sharded(array if isinstance(array, Readable) else np.asarray(array), sharding)


def read_sharded(array: np.ndarray | Readable, sharding: Sharding) -> jax.Array:
    """Reads an array onto devices, each its own part; no process reads what its devices lack.

    What these hold is read once, also if several hold the same; at one go where it is a block.

    Raises:
      CheckpointError: see :meth:`specdec.checkpoints.parameters.StoredArray.read`.
    """
    shape = array.shape
    held = sharding.addressable_devices_indices_map(shape).values()
    parts = {_bounds(index, shape) for index in held}
    hull: Bounds = tuple(
        (min(begin for begin, _ in axis), max(end for _, end in axis))
        for axis in zip(*parts, strict=True)
    )
    read = functools.cache(lambda bounds: array[tuple(slice(*each) for each in bounds)])
    block = sum(map(_size, parts)) == _size(hull)

    def part(index: Index | None) -> np.ndarray:
        bounds = _bounds(index, shape)
        if not block:
            return read(bounds)
        inside = zip(bounds, hull, strict=True)
        return read(hull)[tuple(slice(b - low, e - low) for (b, e), (low, _) in inside)]

    return jax.make_array_from_callback(shape, sharding, part)


def _bounds(index: Index | None, shape: tuple[int, ...]) -> Bounds:
    assert index is not None
    return tuple(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))


def _size(bounds: Bounds) -> int:
    return math.prod(end - begin for begin, end in bounds)


def replicate(params: Params, partitioning: Partitioning | None) -> Params:
    """Parameters whole on every device; as they are without a mesh."""
    if partitioning is None:
        return params
    return jax.tree.map(lambda array: place(array, (), partitioning), params)


def all_finite(tree: Params) -> bool:
    """Whether no number is NaN or infinite; NumPy looks, so that nothing is compiled."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def to_host(tree: T) -> T:
    """A program's results as NumPy arrays, whole in each process that ran it."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            assert isinstance(leaf.sharding, NamedSharding)
            tree = _gather(leaf.sharding.mesh)(tree)
            break
    return jax.tree.map(np.asarray, tree)


@functools.cache
def _gather(mesh: Mesh) -> Callable[[T], T]:
    """A program that puts a tree whole on every device."""
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


def agreed(partitioning: Partitioning | None, value: T) -> T:
    """Process 0's value in each process of a mesh over several; elsewhere the value itself.

    For what depends on time or on a host's files, and decides what is run next.
    """
    if partitioning is None or not partitioning.several_processes:
        return value
    return pickle.loads(exchange(pickle.dumps(value))[0])
