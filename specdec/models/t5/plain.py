"""A decode step's arithmetic as XLA does it; ``few_tokens.py`` has the same functions for CPU."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def pack(kernel: Float[Array, "i o"]) -> Float[Array, "i o"]:
    """A kernel as :func:`product` reads it: as it is."""
    return kernel


def tied(embedding: Float[Array, "v d"]) -> Float[Array, "d v"]:
    """The embedding as the kernel of the logits."""
    return embedding.T


def product(kernel: Float[Array, "i o"], x: Float[Array, "b t i"]) -> Float[Array, "b t o"]:
    """x kernel; the kernel is stored in-features first."""
    return x @ kernel


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
