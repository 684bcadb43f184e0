"""A decode step's arithmetic as XLA does it; ``few_tokens.py`` has the same functions for CPU.

Kernels that are read together are stacked along an axis of their own, so that a mesh can cut each
of them by its out-features.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def pack(kernel: Float[Array, "i *n o"]) -> Float[Array, "i *n o"]:
    """A kernel, or N stacked ones, as :func:`product` reads it: as it is."""
    return kernel


pack_whole = pack


def tied(embedding: Float[Array, "v d"]) -> Float[Array, "d v"]:
    """The embedding as the kernel of the logits."""
    return embedding.T


def product(
    kernel: Float[Array, "i *n o"], x: Float[Array, "b t i"], dtype: jnp.dtype | None = None
) -> Float[Array, "b t *n o"]:
    """x kernel in ``dtype``, x's own if None; the kernel is stored in-features first."""
    return jnp.tensordot(x, kernel, 1, preferred_element_type=dtype)


def split(products: Float[Array, "b t n o"], count: int) -> Sequence[Float[Array, "b t o"]]:
    """The products of stacked kernels apart."""
    return [products[:, :, i] for i in range(count)]


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    return jnp.einsum("bhtk,bhmk->bhtm", query, keys).astype(jnp.float32)


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"]
) -> Float[Array, "b h t k"]:
    """weights values for each row and head."""
    return jnp.einsum("bhtm,bhmk->bhtk", weights, values)


def embed(embedding: Float[Array, "v d"], tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
    """The tokens' rows."""
    return embedding[tokens]


def mean_square(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Of each token's features, in float32."""
    return jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
