"""Kernels for a GPU, one for each thing that a layer does with few tokens.

There a small model's step is the time of its launches, and XLA makes about 25 of a layer. Products
that are summed in parts, norms, softmax, cache writes and transposes are kernels of their own to
it; here they are part of the product or the attention beside them. ``fused_programs.py`` has what a
kernel computes.

bfloat16 is multiplied as it is and added up in float32, float32 in full; norms, activations and
softmax are float32; each result is rounded once.

Shapes: B batch, T tokens of a row's call, D features in, O out, H heads, K head_dim, I = H * K,
M entries of a cache or an encoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.models.products.quantized import Kernel

MOST_ROWS = 128  # Tokens of a call, of all rows together.


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of tokens before a product.

    Attributes:
      scale: [D].
      bias: [D] of a LayerNorm; None for T5's norm, which subtracts no mean either.
      epsilon: added to the mean square.
    """

    scale: Float[Array, " d"]
    bias: Float[Array, " d"] | None
    epsilon: float


def product_of_normed(
    x: Float[Array, "b t d"], norm: Norm | None, kernel: Kernel,
    bias: Float[Array, " o"] | None = None, *,
    act: Callable[[Array], Array] | None = None, gated: bool = False, tied: bool = False,
    dtype: jnp.dtype | None = None,
) -> Float[Array, "b t o"]:  # fmt: skip
    """act(norm(x) kernel + bias) in ``dtype``, x's own if None.

    Args:
      norm: None for x itself.
      kernel: [D, O], in x's dtype.
      act: None for none; made of what Triton has, which erf is not.
      gated: the kernel is two joined ones [D, 2 * O]: act(norm(x) first) * (norm(x) second).
      tied: the kernel is an embedding [O, D].
    """
    parts = tuple(part for part in (norm.scale, norm.bias) if part is not None) if norm else ()
    return _programs().product(
        x, kernel, parts, bias, None, dtype=jnp.dtype(dtype or x.dtype),
        epsilon=norm.epsilon if norm else 0.0, act=act, gated=gated, tied=tied,
    )  # fmt: skip


def added(
    x: Float[Array, "b t o"], h: Float[Array, "b t d"], kernel: Kernel,
    bias: Float[Array, " o"] | None = None,
) -> Float[Array, "b t o"]:  # fmt: skip
    """x + h kernel + bias, all in x's dtype; the kernel is [D, O]."""
    return _programs().product(h, kernel, (), bias, x, dtype=x.dtype)


def self_attention(
    qkv: Float[Array, "b t 3*i"], keys: Float[Array, "b h m k"], values: Float[Array, "b h m k"],
    bias: Float[Array, "*b *h t m"], start: Int[Array, " b"], scale: float = 1.0,
) -> tuple[Float[Array, "b t i"], Float[Array, "b h m k"], Float[Array, "b h m k"]]:  # fmt: skip
    """Attention of new tokens to a cache with them, and that cache, written in place.

    Args:
      qkv: queries, keys and values of the new tokens, in the cache's dtype.
      bias: float32, added to the products of queries and keys; [1 or B, 1 or H, T, M].
      start: where in each row they are written, at most M - T. Nothing behind them is looked at.
      scale: factor of queries.
    """
    return _programs().attention(qkv, keys, values, bias, start, scale=scale)


def cross_attention(
    query: Float[Array, "b t i"], keys: Float[Array, "b h m k"], values: Float[Array, "b h m k"],
    bias: Float[Array, "*b *h *t m"], scale: float = 1.0,
) -> Float[Array, "b t i"]:  # fmt: skip
    """Attention to a cache that is already written; see :func:`self_attention`."""
    return _programs().attention(query, keys, values, bias, None, scale=scale)


def _programs():
    # Imported where a kernel is made: Pallas takes long to import, and a CPU needs none.
    from specdec.models.products import fused_programs

    return fused_programs
