"""A decode step's arithmetic as XLA does it; ``few_tokens.py`` has the same functions for CPU.

Kernels that are read together are one, [in, N * out]. Where a mesh cuts it into W parts each device
has its own part of each of the N, side by side: the out-features are in the order [W, N, out / W].
(Stacked along an axis of their own, TPUs copy them into another layout at the start of a decode.)

float32 means products in float32: without saying so a TPU rounds to bfloat16 and a GPU to TF32.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.reductions import softmax_parts as numerators
from specdec.models.products.quantized import (
    Int4Kernel,
    Int8Kernel,
    Kernel,
    check_group,
    to_int4,
    to_int8,
)

# See ``few_tokens.py``: here a compiler cuts them as it likes.
SCORES_AT_ONCE = sys.maxsize


def pack(kernel: Float[Array, "i o"]) -> Float[Array, "i o"]:
    """A kernel as :func:`product` reads it: as it is."""
    return kernel


pack_whole = pack


def joined(kernels: Sequence[Float[Array, "i o"]], ways: int) -> Float[Array, "i n*o"]:
    """Kernels of one size as one, for a mesh that cuts it into ``ways`` parts."""
    parts = [kernel.reshape(len(kernel), ways, 1, -1) for kernel in kernels]
    return jnp.concatenate(parts, axis=2).reshape(len(kernels[0]), -1)


def tied(embedding: Kernel) -> Kernel:
    """The embedding as the kernel of the logits."""
    if isinstance(embedding, Int8Kernel):
        return Int8Kernel(embedding.qvalue.T, embedding.scale)
    assert not isinstance(embedding, Int4Kernel)
    return embedding.T


def quantize(kernel: Kernel, bits: int, group: int) -> Int8Kernel | Int4Kernel:
    """A kernel in 8 bits: ``qvalue`` int8 [I, O], ``scale`` [O].

    In 4 bits: ``qvalue`` int4 [groups, numbers of a group, O], ``scale`` [groups, 1, O].

    Raises:
      ValueError: the group does not divide the in-features.
    """
    assert not isinstance(kernel, Int4Kernel)
    if isinstance(kernel, Int8Kernel):
        kernel = kernel.qvalue * kernel.scale
    if bits == 8:
        qvalue, scale = to_int8(kernel, axis=0)
        return Int8Kernel(qvalue, scale[0])
    check_group(len(kernel), group)
    qvalue, scale = to_int4(kernel.reshape(-1, group, kernel.shape[1]), axis=1)
    return Int4Kernel(qvalue.astype(jnp.int4), scale)


def product(
    kernel: Kernel, x: Float[Array, "b t i"], dtype: jnp.dtype | None = None
) -> Float[Array, "b t o"]:
    """x kernel in ``dtype``, x's own if None; the kernel is stored in-features first.

    One of fewer bits is widened here, at each use again: the barrier keeps XLA from doing so once,
    before the decode loop.
    """
    if isinstance(kernel, Int8Kernel):
        products = product(kernel.qvalue, x, jnp.float32) * kernel.scale
        return products.astype(dtype or x.dtype)
    if isinstance(kernel, Int4Kernel):
        qvalue, scale, x = jax.lax.optimization_barrier((kernel.qvalue, kernel.scale, x))
        scaled = qvalue.astype(x.dtype) * scale.astype(x.dtype)
        widened = scaled.reshape(-1, scaled.shape[2])
    elif kernel.dtype != x.dtype:
        widened, x = jax.lax.optimization_barrier((kernel, x))
        widened = widened.astype(x.dtype)
    else:
        widened = kernel
    return jnp.dot(x, widened, precision=precision(x), preferred_element_type=dtype)


def precision(x: Array) -> jax.lax.Precision:
    """Precision of products with x: all of its own bits."""
    exact = x.dtype == jnp.float32
    return jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT


def split(products: Float[Array, "b t n*o"], count: int, ways: int) -> list[Float[Array, "b t o"]]:
    """The products of :func:`joined` kernels apart."""
    # Else the kernel would be reshaped instead of its products, which copies it.
    products = jax.lax.optimization_barrier(products)
    if ways == 1:
        return jnp.split(products, count, axis=-1)
    batch, length, _ = products.shape
    parts = products.reshape(batch, length, ways, count, -1)
    return [parts[:, :, :, i].reshape(batch, length, -1) for i in range(count)]


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    products = jnp.einsum("bhtk,bhmk->bhtm", query, keys, precision=precision(query))
    return products.astype(jnp.float32)


def softmax_parts(*scores: Float[Array, "*shape m"]) -> tuple[list[Array], Array]:
    """A softmax's numerators [..., M], for each of its parts, and their sum [..., 1]."""
    whole = scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=-1)
    weights, total = numerators(whole)
    ends = itertools.accumulate(each.shape[-1] for each in scores[:-1])
    return jnp.split(weights, list(ends), axis=-1), total


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"]
) -> Float[Array, "b h t k"]:
    """weights values for each row and head."""
    return jnp.einsum("bhtm,bhmk->bhtk", weights, values, precision=precision(values))


def encoded_values(values: Float[Array, "... s k"]) -> Float[Array, "... s k"]:
    """An encoder's values as :func:`mix_encoded` reads them."""
    return values


mix_encoded = mix
inverse_root = jax.lax.rsqrt


def in_memory(x: Array) -> Array:
    """x; where ``few_tokens.py`` keeps it, a compiler here decides what it keeps."""
    return x


def embed(embedding: Kernel, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
    """The tokens' rows [V, D]."""
    if isinstance(embedding, Int8Kernel):
        return embedding.qvalue[tokens] * embedding.scale[tokens][..., None]
    assert not isinstance(embedding, Int4Kernel)
    return embedding[tokens]


def mean(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of each token's features, in float32."""
    return jnp.mean(x.astype(jnp.float32), axis=-1, keepdims=True)


def mean_square(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of the squares of each token's features, in float32."""
    return jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
