"""Kernels of 4 bits on CPU: two numbers in a byte, read by a decode step's one or two tokens.

Number j * L + l of a row's in-features is in group l of L, so that numbers which stand together
have scales that stand together, and a vector of them is widened at once. Shapes: O out-features, G
numbers of a group, L groups.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.models.products.quantized import Int4Kernel, check_group, to_int4

_barrier = jax.lax.optimization_barrier
FEW = 2  # Tokens; for more, widening a kernel once costs less.
_STREAMS = 2  # Parts of a kernel that are read together.


def quantize(rows: Float[Array, "o i"], group: int) -> Int4Kernel:
    """A kernel's rows: ``qvalue`` uint8 [O, G / 2, L], each number plus 8, and ``scale`` [O, L].

    Raises:
      ValueError: the group does not divide the in-features.
    """
    check_group(rows.shape[1], group)
    numbers, scale = to_int4(rows.reshape(len(rows), group, -1), axis=1)
    numbers = (numbers + 8).astype(jnp.uint8)
    return Int4Kernel(numbers[:, 0::2] | numbers[:, 1::2] << 4, scale[:, 0])


def widened(kernel: Int4Kernel) -> Float[Array, "o i"]:
    """The kernel's rows in float32."""
    low, high = (_number(kernel.qvalue, part) - 8 for part in (0, 1))
    numbers = jnp.stack([low, high], axis=2)  # [O, G / 2, 2, L]
    scaled = numbers * kernel.scale.astype(jnp.float32)[:, None, None]
    return scaled.reshape(len(scaled), -1)


def product(
    kernel: Int4Kernel, layer: Int[Array, ""] | None, x: Float[Array, "t i"], begin: int = 0
) -> Float[Array, "t o"]:
    """The product of at most :data:`FEW` tokens, in float32.

    Sums are of numbers plus 8; what that adds is 8 times the sum of x, which all rows share.

    Args:
      layer: the number of the layer's kernel in a stack of all layers'; None for one kernel.
      begin: the row to begin with.
    """
    size, pairs, groups = kernel.qvalue.shape[-3:]
    size -= begin
    given, x = x, x.astype(jnp.float32).reshape(len(x), 2 * pairs, groups)
    extra = 8 * jnp.sum(x, axis=1)
    qvalue, scale, layer, x, extra = _barrier((kernel.qvalue, kernel.scale, layer, x, extra))
    streams = min(_STREAMS, size)
    rows = size // streams

    def part_of(array: Array, stream: int, *pair: int) -> Float[Array, "o l"]:
        """The rows of one stream, of one pair where there are several."""
        at, sizes = (begin + stream * rows, *pair, 0), (rows, *[1] * len(pair), groups)
        if layer is not None:
            at, sizes = (layer, *at), (1, *sizes)
        found = jax.lax.dynamic_slice(array, at, sizes, allow_negative_indices=False)
        return found.reshape(rows, groups)

    def terms(token: int, stream: int) -> Float[Array, "o l"]:
        """Sums of each group's products."""
        total = -extra[token][None]
        for pair in range(pairs):
            for part in (0, 1):
                number = _number(part_of(qvalue, stream, pair), part)
                total = total + number * x[token, 2 * pair + part][None]
        return total * part_of(scale, stream).astype(jnp.float32)

    found = [terms(token, stream) for token in range(len(x)) for stream in range(streams)]
    sums = jax.lax.reduce(
        found, [jnp.zeros(())] * len(found),
        lambda a, b: [u + v for u, v in zip(a, b, strict=True)], (1,),
    )  # fmt: skip
    out = jnp.concatenate(_barrier(sums)).reshape(len(x), -1)
    if size % streams:  # A row is left over.
        rest = product(kernel, layer, given, begin + streams * rows)
        out = jnp.concatenate([out, rest], axis=1)
    return out


def _number(byte: Int[Array, ...], part: int) -> Float[Array, ...]:
    """The lower (0) or upper (1) half of bytes."""
    return (byte >> 4 if part else byte & 15).astype(jnp.float32)
