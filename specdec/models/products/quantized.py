"""Kernels in few bits, and how numbers are rounded to them.

``qvalue`` times ``scale`` is about the kernel, as in qwix's ``QArray`` and AQT's ``QTensor``. Only
weights have few bits: what they are multiplied with keeps its own, and so do sums. Each layout's
module (``few_tokens.py``, ``plain.py``) has the shapes and the products.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.arguments import whole
from specdec.core.pytrees import pytree
from specdec.types import AnyArray

GROUP = 16  # In-features that share a scale in 4 bits, by default.


@pytree
class Int8Kernel:
    """A kernel in 8 bits, with a scale for each out-feature; or an embedding, for each row."""

    qvalue: Array
    scale: Float[Array, ...]


@pytree
class Int4Kernel:
    """A kernel in 4 bits, with a scale for each out-feature and group of in-features."""

    qvalue: Array
    scale: Float[Array, ...]


Kernel: TypeAlias = Array | Int8Kernel | Int4Kernel  # As a layout's module packs it.


@pytree
class OfLayer:
    """One layer's kernel, where it lies in the stack of all layers' kernels; on CPU alone."""

    stack: Kernel  # [L, ...]
    number: Int[Array, ""]


LayerKernel: TypeAlias = Kernel | OfLayer


def num_bytes(tree: Any) -> int:
    """Size of a tree of arrays, in bytes; accelerators store two of JAX's int4 in a byte."""

    def of(array: Array) -> int:
        bits = 4 if array.dtype == jnp.int4 else 8 * array.dtype.itemsize
        return array.size * bits // 8

    return sum(map(of, jax.tree.leaves(tree)))


def check_bits(bits: int, group: int | None) -> None:
    """Raises ValueError for bits or groups that are not offered."""
    if whole("bits", bits, 1) not in (8, 4):
        raise ValueError(f"bits must be 8 or 4, got {bits!r}.")
    if group is None:
        return
    if bits == 8:
        raise ValueError(f"8 bits have one scale an output and no groups, got group = {group!r}.")
    if whole("group", group, 1) % 2:
        raise ValueError(f"group must be an even number of at least 2, got {group!r}.")


def check_group(size: int, group: int) -> None:
    """Raises ValueError unless groups divide a kernel's in-features."""
    if size % group:
        raise ValueError(
            f"Groups of {group} do not divide a kernel of {size} in-features: choose a group that "
            "divides all of them, such as 16."
        )


def to_int8(kernel: AnyArray, axis: int) -> tuple[AnyArray, AnyArray]:
    """int8 numbers and float32 scales (1 along ``axis``): the nearest, the largest being 127.

    Arrays of NumPy stay such.
    """
    xp = kernel.__array_namespace__()
    kernel = kernel.astype(jnp.float32)
    largest = xp.max(xp.abs(kernel), axis=axis, keepdims=True)
    scale = xp.where(largest > 0, largest / 127, xp.float32(1))
    with np.errstate(invalid="ignore"):  # What was infinite is seen when all is packed.
        return xp.round(kernel / scale).astype(jnp.int8), scale


def int8_rows(embedding: Float[AnyArray, "v d"]) -> Int8Kernel:
    """An embedding, with a scale for each row."""
    qvalue, scale = to_int8(embedding, axis=1)
    return Int8Kernel(qvalue, scale[:, 0])


def to_int4(kernel: Array, axis: int) -> tuple[Array, Array]:
    """Numbers in -8..7 as int8, and float16 scales (1 along ``axis``).

    The scale has the sign that makes the number farthest from zero -8, so that all sixteen serve.
    """
    kernel = kernel.astype(jnp.float32)
    farthest = jnp.argmax(jnp.abs(kernel), axis=axis, keepdims=True)
    largest = jnp.take_along_axis(kernel, farthest, axis=axis)
    scale = (largest / -8).astype(jnp.float16)
    divisor = jnp.where(scale == 0, 1, scale).astype(jnp.float32)
    return jnp.clip(jnp.round(kernel / divisor), -8, 7).astype(jnp.int8), scale
