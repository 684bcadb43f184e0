"""Storage of a checkpoint's parameters for the products that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec.models.partitioning import Partitioning
from specdec.models.placing import place
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


def pack_logits(
    params: Any, config: Any, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None,
) -> tuple[Kernel | None, Int[Array, " n"] | None]:  # fmt: skip
    """The logits' kernel, None where the embedding serves, and what its outputs are, None for all.

    Args: see ``pack`` of a packing.
    """
    if output_tokens is None and config.tied_logits:
        return None, None
    generated = None
    if output_tokens is not None:
        generated = place(np.asarray(output_tokens, np.int32), (None,), partitioning)
    if config.tied_logits:
        kernel = place(params["token_embedder"]["embedding"], ("vocab", "embed"), partitioning).T
    else:
        kernel = params["decoder"]["logits_dense"]["kernel"]
        kernel = place(kernel, ("embed", "vocab"), partitioning)
    if generated is not None:
        kernel = kernel[:, generated]
    axes = ("embed", "vocab" if generated is None else None)
    kernel = at_most(narrow or jnp.dtype(config.dtype), place(kernel, axes, partitioning))
    return store.kernel(kernel), generated
