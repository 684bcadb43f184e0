"""Storage of a checkpoint's parameters for the products that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType

import jax.numpy as jnp
from jaxtyping import Array

from specdec.models.products.quantized import Kernel


@dataclasses.dataclass(frozen=True)
class Store:
    """A layout's storage of the parameters that products read."""

    kernel: Callable[[Array], Kernel]  # A decoder's, [in, out].
    whole: Callable[[Array], Kernel]  # An encoder's.
    embedding: Callable[[Array], Kernel]  # [V, D].
    # N kernels [in, out] as one [in, N * out], which a mesh cuts into so many parts.
    joined: Callable[[Sequence[Array], int], Array]


def store_of(ops: ModuleType) -> Store:
    """Store for a layout's products, with all bits."""
    return Store(ops.pack, ops.pack_whole, lambda table: table, ops.joined)


def at_most(widest: jnp.dtype, array: Array) -> Array:
    """An array in its own bits, or in those of ``widest`` if these are fewer."""
    return array if array.dtype.itemsize < widest.itemsize else array.astype(widest)
