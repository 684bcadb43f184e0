"""Products of a few tokens with something large, about as fast as that can be read, on CPU.

XLA's own CPU product of one token reads memory at two thirds of its speed, and that of 2 to 8
tokens is bound by arithmetic: it costs 1.5 to 3 times as much, where a verification call should
cost what a plain step does. Each choice below was the fastest of several on two AVX-512 cores,
with kernels of 0.8 to 8 MB that come from memory at every use.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_FEW = 8


def few_tokens_product(
    kernel: Float[Array, "o i"], x: Float[Array, "b t i"]
) -> Float[Array, "b t o"]:
    """x kernel.T.

    The barriers keep XLA from moving neighbouring operations into the product, where they would
    be computed again for each row of the kernel.
    """
    flat = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]))
    out = _kernel_sums(kernel, flat) if len(flat) <= _FEW else _padded_product(kernel, flat)
    return out.reshape(*x.shape[:-1], -1)


def attention_scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    count = query.shape[2]
    if not 1 < count <= _FEW:
        return jnp.einsum("bhtk,bhmk->bhtm", query, keys).astype(jnp.float32)
    query = jax.lax.optimization_barrier(query)
    return jnp.stack(_sums([(keys, query[:, :, t, None, :]) for t in range(count)]), axis=2)


def _kernel_sums(kernel: Float[Array, "o i"], x: Float[Array, "t i"]) -> Float[Array, "t o"]:
    """Up to 4 tokens, two rows are summed together, so that a load of x serves both."""
    tokens, size = len(x), len(kernel)
    streams = 2 if tokens <= 4 and size % 2 == 0 else 1
    parts = kernel.reshape(streams, size // streams, -1)
    sums = _sums([(part, token) for token in x for part in parts])
    return jnp.concatenate(sums).reshape(tokens, size).astype(x.dtype)


def _sums(pairs: Sequence[tuple[Float[Array, ...], Float[Array, ...]]]) -> list[Array]:
    """The sum of a * b over the last axis for each pair, in float32 and in one loop.

    It is a single variadic reduction, which vectorises under
    :data:`specdec.core.compilation.CPU_OPTIONS`.
    """
    products = [a.astype(jnp.float32) * b.astype(jnp.float32) for a, b in pairs]
    sums = jax.lax.reduce(
        products,
        [jnp.zeros(())] * len(products),
        lambda a, b: [u + v for u, v in zip(a, b, strict=True)],
        (products[0].ndim - 1,),
    )
    return jax.lax.optimization_barrier(sums)


def _padded_product(kernel: Float[Array, "o i"], x: Float[Array, "t i"]) -> Float[Array, "t o"]:
    """The tokens as the product's minor axis, padded to a count at which XLA is efficient."""
    padded = max(2 * _FEW, len(x))
    columns = jax.lax.optimization_barrier(jnp.pad(x.T, ((0, 0), (0, padded - len(x)))))
    product = jax.lax.optimization_barrier(kernel @ columns)
    return product[:, : len(x)].T
