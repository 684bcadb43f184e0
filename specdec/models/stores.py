"""Storage of a checkpoint's parameters for the products that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType

import jax.numpy as jnp
import numpy as np

from specdec.models.products import few_tokens
from specdec.models.products.quantized import Kernel
from specdec.types import AnyArray


@dataclasses.dataclass(frozen=True)
class Store:
    """A layout's storage of the parameters that products read.

    Attributes:
      stacked: whether layers' arrays are stacked, for a loop over layers. Those of NumPy are packed
        as such then, so that loading compiles nothing.
    """

    kernel: Callable[[AnyArray], Kernel]  # A decoder's, [in, out].
    whole: Callable[[AnyArray], Kernel]  # An encoder's.
    embedding: Callable[[AnyArray], Kernel]  # [V, D].
    # N kernels [in, out] as one [in, N * out], which a mesh cuts into so many parts.
    joined: Callable[[Sequence[AnyArray], int], AnyArray]
    stacked: bool


def store_of(ops: ModuleType) -> Store:
    """Store for a layout's products, with all bits."""
    stacked = ops is few_tokens
    return Store(ops.pack, ops.pack_whole, lambda table: table, ops.joined, stacked)


def at_most(widest: jnp.dtype, array: AnyArray) -> AnyArray:
    """An array in its own bits, or in those of ``widest`` if these are fewer."""
    with np.errstate(over="ignore"):  # What became infinite is seen when all is packed.
        return array if array.dtype.itemsize < widest.itemsize else array.astype(widest)
