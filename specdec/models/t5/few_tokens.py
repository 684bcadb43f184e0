"""A decode step's arithmetic for a few tokens, about as fast as memory can be read, on CPU.

XLA's own CPU product of one token reads memory at two thirds of its speed, and that of 2 to 8
tokens is bound by arithmetic: it costs 1.5 to 3 times as much, where a verification call should
cost what a plain step does. Each choice below was the fastest of several on two AVX-512 cores,
with kernels of 0.8 to 8 MB that come from memory at every use. Beyond a few tokens, and on other
devices, ``plain.py`` has the same functions.

The barriers keep XLA from moving neighbouring operations into a reduction, where they would be
computed again for each row. They need :data:`specdec.core.compilation.CPU_OPTIONS`, as does the
vectorisation of the reductions; without them results are the same, only slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.reductions import sum_last
from specdec.models.t5 import plain

_FEW = 8
_barrier = jax.lax.optimization_barrier


def product(kernel: Float[Array, "o i"], x: Float[Array, "b t i"]) -> Float[Array, "b t o"]:
    """x kernel.T; the kernel is stored out-features first."""
    flat = _barrier(x.reshape(-1, x.shape[-1]))
    out = _kernel_sums(kernel, flat) if len(flat) <= _FEW else _padded_product(kernel, flat)
    return out.reshape(*x.shape[:-1], -1)


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"]
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32."""
    count = query.shape[2]
    if not 1 < count <= _FEW:  # For one token XLA's product is the faster one.
        return plain.scores(query, keys)
    query = _barrier(query)
    return jnp.stack(_sums([(keys, query[:, :, t, None, :]) for t in range(count)], 3), axis=2)


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"]
) -> Float[Array, "b h t k"]:
    """weights values for each row and head."""
    count = weights.shape[2]
    if not 1 < count <= _FEW:
        return plain.mix(weights, values)
    weights = _barrier(weights)
    sums = _sums([(values, weights[:, :, t, :, None]) for t in range(count)], 2)
    return jnp.stack(sums, axis=2).astype(values.dtype)


def embed(embedding: Float[Array, "v d"], tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
    """The tokens' rows; XLA's CPU gather goes element by element."""
    if tokens.size > _FEW:
        return plain.embed(embedding, tokens)
    rows = [jax.lax.dynamic_slice_in_dim(embedding, token, 1) for token in tokens.reshape(-1)]
    return jnp.concatenate(rows).reshape(*tokens.shape, -1)


def mean_square(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Of each token's features, in float32."""
    x = _barrier(x).astype(jnp.float32)
    return (sum_last(x * x) / x.shape[-1])[..., None]


def _kernel_sums(kernel: Float[Array, "o i"], x: Float[Array, "t i"]) -> Float[Array, "t o"]:
    """Up to 4 tokens, two rows are summed together, so that a load of x serves both."""
    tokens, size = len(x), len(kernel)
    streams = 2 if tokens <= 4 and size % 2 == 0 else 1
    parts = kernel.reshape(streams, size // streams, -1)
    sums = _sums([(part, token) for token in x for part in parts], 1)
    return jnp.concatenate(sums).reshape(tokens, size).astype(x.dtype)


def _sums(pairs: Sequence[tuple[Float[Array, ...], Float[Array, ...]]], axis: int) -> list:
    """The sum of a * b over ``axis`` for each pair, in float32: one loop, one variadic reduction.

    XLA rewrites a reduction of a single operand into several; one of two or more it leaves whole.
    """
    products = [a.astype(jnp.float32) * b.astype(jnp.float32) for a, b in pairs]
    return _barrier(jax.lax.reduce(products, [jnp.zeros(())] * len(products), _add, (axis,)))


def _add(a: list, b: list) -> list:
    return [u + v for u, v in zip(a, b, strict=True)]


def _padded_product(kernel: Float[Array, "o i"], x: Float[Array, "t i"]) -> Float[Array, "t o"]:
    """The tokens as the product's minor axis, padded to a count at which XLA is efficient."""
    padded = max(2 * _FEW, len(x))
    columns = _barrier(jnp.pad(x.T, ((0, 0), (0, padded - len(x)))))
    return _barrier(kernel @ columns)[:, : len(x)].T
