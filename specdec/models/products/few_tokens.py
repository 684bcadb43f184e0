"""A decode step's arithmetic for a few tokens, about as fast as memory can be read, on CPU.

XLA's own CPU product of one token reads memory at two thirds of its speed, and that of 2 to 8
tokens costs 1.5 to 3 times as much, where a verification call should cost what a plain step does.
Each choice below was the fastest of several on two AVX-512 cores, with kernels of 0.8 to 8 MB that
come from memory at every use. 9 to 32 tokens are several passes over a kernel, each of a few of
them. Beyond, the product is XLA's, up to 64 tokens the way round that takes it half the time. On
other devices ``plain.py`` has the same functions.

Kernels are stored in chunks, [C, O, W]: W of the in-features at a time for every out-feature, so
that the inputs of 8 tokens stay in the first-level cache beside the kernel that streams by.

The layers of a stack are run in a loop, so that a program has the text of one. Its kernels are
stacked, [L, C, O, W], and a product reads its layer's where it lies: the slice is part of the
reduction. (Behind a ``lax.scan`` or in a product of XLA's it would be copied first.)

The order of sums is the one that the compiler finds fastest, which depends on how many tokens there
are. ``exact.py`` has the same functions with sums that do not.

The barriers keep XLA from moving neighbouring operations into a reduction, where they would be
computed again for each row, and from taking the widening of a 16-bit kernel out of the decode loop.
They need :data:`specdec.core.compilation.CPU_OPTIONS`: without, results are the same but for
rounding, and slower.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.machine import vector_registers
from specdec.core.reductions import sum_last
from specdec.models.products import nibbles, plain
from specdec.models.products.plain import in_memory as in_memory
from specdec.models.products.plain import inverse_root as inverse_root
from specdec.models.products.plain import softmax_parts as softmax_parts
from specdec.models.products.quantized import (
    Int4Kernel,
    Int8Kernel,
    Kernel,
    LayerKernel,
    OfLayer,
    to_int8,
)
from specdec.models.products.sums import (
    FEW,
    VECTOR,
    Cut,
    barrier,
    in_passes,
    sums,
    with_others,
)
from specdec.types import AnyArray

# Up to so many tokens a product is one pass, several, and XLA's the faster way round.
ONE_PASS, _SOME, _MANY = 8, 32, 64
_PAIR = 2  # Sums in a loop, at least: of one alone XLA makes something else.
QUERIES_AT_ONCE = 8  # Attention of as many is one pass over the keys and values.
_TILES = (6, 5, 4)  # Tokens of each of several passes: the first that leaves none over, if any.
# Features in a chunk, at most, by the bytes of one; and at least.
_WIDEST, _NARROWEST = {4: 512, 2: 512, 1: 4096}, 64
_STREAMS = (8, 4, 3, 2, 1)  # Parts of a kernel that are read together.
# Bytes of the scores of all heads, of which more are computed head by head: they stay in a cache.
SCORES_AT_ONCE = 2**22
# Sums in float32 are several times as fast for bfloat16 on processors with AMX; network.py, too.
_matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)


def joined(kernels: Sequence[Float[AnyArray, "i o"]], ways: int) -> Float[AnyArray, "i n*o"]:
    """Kernels as one; no mesh cuts kernels of this layout."""
    assert ways == 1
    return kernels[0].__array_namespace__().concatenate(kernels, axis=1)


def pack(kernel: Float[AnyArray, "i o"]) -> Float[AnyArray, "c o w"]:
    """A kernel as :func:`product` reads it; one of NumPy's is a view."""
    size = len(kernel)
    counts, widest = range(1, size // _NARROWEST + 1), _WIDEST[kernel.dtype.itemsize]
    chunks = next((c for c in counts if size % c == 0 and size <= c * widest), 1)
    return kernel.reshape(chunks, size // chunks, -1).transpose(0, 2, 1)


def pack_whole(kernel: Float[AnyArray, "i o"]) -> Float[AnyArray, "1 o i"]:
    """Pack an encoder's kernel, which always meets more than a few tokens: one chunk."""
    return kernel.T[None]


def tied(embedding: Kernel) -> Kernel:
    """The embedding as the kernel of the logits."""
    if isinstance(embedding, Int8Kernel):
        return Int8Kernel(embedding.qvalue[None], embedding.scale)
    assert not isinstance(embedding, Int4Kernel | OfLayer)
    return embedding[None]


def quantize(kernel: Kernel, bits: int, group: int) -> Int8Kernel | Int4Kernel:
    """A packed kernel in 8 bits (``qvalue`` [C, O, W], ``scale`` [O]), or in 4: ``nibbles.py``.

    Raises:
      ValueError: the group does not divide the in-features.
    """
    assert not isinstance(kernel, Int4Kernel | OfLayer)
    if isinstance(kernel, Int8Kernel):
        kernel = kernel.qvalue * kernel.scale[:, None]
    rows = kernel.transpose(1, 0, 2).reshape(kernel.shape[1], -1)
    if bits == 4:
        return nibbles.quantize(rows, group)
    qvalue, scale = to_int8(rows, axis=1)
    return Int8Kernel(pack(qvalue.T), scale[:, 0])


def product(
    kernel: LayerKernel, x: Float[Array, "b t i"], dtype: jnp.dtype | None = None
) -> Float[Array, "b t o"]:
    """The product of x and a packed kernel, in ``dtype``, x's own if None."""
    dtype = dtype or x.dtype
    stack, layer = (kernel.stack, kernel.number) if isinstance(kernel, OfLayer) else (kernel, None)
    if isinstance(stack, Int8Kernel):
        scale = stack.scale if layer is None else of_layer(stack.scale, layer)
        products = product(_same_layer(stack.qvalue, layer), x, jnp.float32)
        return (products * scale).astype(dtype)
    if isinstance(stack, Int4Kernel):
        return _nibbles_product(stack, layer, x, dtype)
    assert not isinstance(stack, OfLayer)
    chunks, width = stack.shape[-3], stack.shape[-1]
    flat = x.reshape(-1, chunks, width)
    tokens = len(flat)
    if tokens <= ONE_PASS:
        out = _streamed_product(stack, layer, flat)
    elif tokens <= _SOME:
        size = next((size for size in _TILES if tokens % size == 0), _TILES[0])
        out = in_passes(functools.partial(_streamed_product, stack, layer), flat, size)
    else:
        whole, flat = _widened(stack, layer, flat)
        if tokens <= _MANY or len(whole) > 1:
            out = _padded_product(whole, flat)
        else:
            out = _matmul(flat[:, 0], whole[0].T)
    return out.astype(dtype).reshape(*x.shape[:-1], -1)


def split(products: Float[Array, "b t n*o"], count: int, ways: int) -> list[Float[Array, "b t o"]]:
    """The products of :func:`joined` kernels apart."""
    assert ways == 1
    return jnp.split(products, count, axis=-1)


def scores(
    query: Float[Array, "b h t k"], keys: Float[Array, "b h m k"], least: int = _PAIR
) -> Float[Array, "b h t m"]:
    """query keys.T for each row and head, in float32, with so many sums in a loop at least."""
    count = query.shape[2]
    if count > QUERIES_AT_ONCE and least < FEW:
        return plain.scores(query, keys)
    query = barrier(query)
    return _by_query(keys, 2, [query[:, :, t, None, :] for t in range(count)], 3, least)


def mix(
    weights: Float[Array, "b h t m"], values: Float[Array, "b h m k"], least: int = _PAIR
) -> Float[Array, "b h t k"]:
    """weights values for each row and head, with so many sums in a loop at least."""
    count = weights.shape[2]
    if count > QUERIES_AT_ONCE and least < FEW:
        return plain.mix(weights, values)
    weights = barrier(weights)
    columns = [weights[:, :, t, :, None] for t in range(count)]
    return _by_query(values, 3, columns, 2, least).astype(values.dtype)


def encoded_values(values: Float[Array, "... s k"]) -> Float[Array, "... k s"]:
    """An encoder's values as :func:`mix_encoded` reads them.

    Sums over inputs that lie side by side are several times as fast as over those of rows.
    """
    return values.swapaxes(-1, -2)


def mix_encoded(
    weights: Float[Array, "b h t s"], values: Float[Array, "b h k s"], least: int = _PAIR
) -> Float[Array, "b h t k"]:
    """:func:`mix` of an encoder's values."""
    count = weights.shape[2]
    if count > QUERIES_AT_ONCE and least < FEW:
        return plain.mix(weights, values.swapaxes(2, 3))
    weights = barrier(weights)
    rows = [weights[:, :, t, None, :] for t in range(count)]
    return _by_query(values, 2, rows, 3, least).astype(values.dtype)


def _by_query(
    whole: Float[Array, "b h ..."], axis: int, queries: Sequence[Float[Array, "b h ..."]],
    over: int, least: int,
) -> Float[Array, "b h t n"]:  # fmt: skip
    """Sums over an axis of keys or values, times what each query has for them.

    Args:
      axis: the one along which the keys or values are read in parts.
      least: sums in a loop. XLA leaves a reduction of two operands whole, and it reads a layer of a
        stack where that lies.
    """
    size, count = whole.shape[axis], len(queries)
    narrowest = VECTOR if least >= FEW else 1  # What is narrower is summed in another order.
    cut = Cut.of(size, max(1, min(-(-least // count), size // narrowest)))
    queries = with_others(queries, -(-least // len(cut.begins)))
    pairs = [(part, query) for query in queries for part in cut.parts(whole, axis)]
    found, each = sums(pairs, over), len(cut.begins)
    own = [cut.own(found[i : i + each], 2) for i in range(0, count * each, each)]
    rows = [jnp.concatenate(row, axis=2) for row in own]
    return jnp.stack(rows, axis=2) if count > 1 else rows[0][:, :, None]


def embed(embedding: Kernel, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
    """The tokens' rows [V, D], in float32; XLA's CPU gather goes element by element."""
    if isinstance(embedding, Int8Kernel):
        return embed(embedding.qvalue, tokens) * embed(embedding.scale[:, None], tokens)
    assert not isinstance(embedding, Int4Kernel | OfLayer)
    table, tokens = barrier((embedding, tokens))
    table = _as_read(table)
    if tokens.size > ONE_PASS:
        return _float32(plain.embed(table, tokens))
    rows = [jax.lax.dynamic_slice_in_dim(table, token, 1) for token in tokens.reshape(-1)]
    return _float32(jnp.concatenate(rows).reshape(*tokens.shape, -1))


def mean(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of each token's features, in float32."""
    x = barrier(x).astype(jnp.float32)
    return (sum_last(x) / x.shape[-1])[..., None]


def mean_square(x: Float[Array, "b t d"]) -> Float[Array, "b t 1"]:
    """Mean of the squares of each token's features, in float32."""
    x = barrier(x).astype(jnp.float32)
    return (sum_last(x * x) / x.shape[-1])[..., None]


def of_layer(stack: Array, layer: Int[Array, ""]) -> Array:
    """The array of one layer of all."""
    return jax.lax.dynamic_index_in_dim(stack, layer, keepdims=False, allow_negative_indices=False)


def _same_layer(stack: Array, layer: Int[Array, ""] | None) -> LayerKernel:
    return stack if layer is None else OfLayer(stack, layer)


def _nibbles_product(
    stack: Int4Kernel, layer: Int[Array, ""] | None, x: Array, dtype: jnp.dtype
) -> Array:
    flat = x.reshape(-1, x.shape[-1])
    if len(flat) <= nibbles.FEW:
        return nibbles.product(stack, layer, flat).astype(dtype).reshape(*x.shape[:-1], -1)
    stack, layer, x = barrier((stack, layer, x))
    if layer is not None:
        stack = jax.tree.map(lambda leaf: of_layer(leaf, layer), stack)
    return product(nibbles.widened(stack)[None], x, dtype)


def _streamed_product(
    stack: Float[Array, "*l c o w"], layer: Int[Array, ""] | None, x: Float[Array, "t c w"]
) -> Float[Array, "t o"]:
    """Rows from several parts of the kernel are summed together.

    A load of x serves all of them, and several places of memory are read at once: where the kernel
    is no longer in a cache that other programs share, one alone is slow to come. Of a token's one
    alone XLA would even make something else, thirty times as slow.
    """
    size, count = stack.shape[-2], len(x)
    cut = Cut.of(size, _streams(size, count))
    stack, layer, x = barrier((stack, layer, x))
    read, tokens = _as_read(stack), x[:, :, None]
    parts = [_float32(_rows(read, layer, begin, cut.size)) for begin in cut.begins]
    found = sums([(part, token) for token in tokens for part in parts], 2)
    own = [cut.own(found[i : i + len(parts)], 1) for i in range(0, len(found), len(parts))]
    whole = jnp.concatenate([part for row in own for part in row], axis=1)
    return _add_up(whole).reshape(count, -1)


def _streams(size: int, tokens: int) -> int:
    """Parts of a kernel's rows that are read together."""
    most = vector_registers() * 3 // 4  # Sums kept at once; inputs and weights need some too.
    enough = [n for n in _STREAMS if n * tokens >= FEW and n <= size]
    fitting = [n for n in enough if n * tokens <= most] or enough[-1:] or [size]
    return next((n for n in fitting if size % n == 0), fitting[0])


def _rows(
    stack: Float[Array, "*l c o w"], layer: Int[Array, ""] | None, begin: int, count: int
) -> Float[Array, "c n w"]:
    """Some rows of a kernel."""
    if layer is None:
        return stack[:, begin : begin + count]
    shape = (1, stack.shape[1], count, stack.shape[3])
    at = (layer, 0, begin, 0)
    return jax.lax.dynamic_slice(stack, at, shape, allow_negative_indices=False)[0]


def _add_up(partial: Array) -> Array:
    """The sum over chunks, [C, ...] -> [...], in their order."""
    total = partial[0]
    for number, chunk in enumerate(partial[1:]):
        total = (barrier(total) if number else total) + chunk
    return total


def _widened(
    stack: Float[Array, "*l c o w"], layer: Int[Array, ""] | None, x: Float[Array, "t c w"]
) -> tuple[Array, Array]:
    """The kernel in x's dtype, and x: XLA's products read a kernel of fewer bits slowly.

    It is widened when x is there and not before, so that all kernels of a program take turns in
    the same memory, which stays in a cache. What is written anew anyway is written as one chunk:
    a product over all in-features is faster than a sum of several.
    """
    if stack.dtype == x.dtype:
        return stack if layer is None else of_layer(stack, layer), x
    stack, layer, x = barrier((stack, layer, x))
    kernel = _as_read(stack)
    wide = _float32(kernel if layer is None else of_layer(kernel, layer)).astype(x.dtype)
    chunks, size, width = wide.shape
    one = wide.transpose(1, 0, 2).reshape(1, size, chunks * width)
    return one, x.reshape(len(x), 1, chunks * width)


def _as_read(kernel: Array) -> Array:
    """bfloat16 as its bits: what XLA does with the number itself, it does with a float32 copy."""
    if kernel.dtype != jnp.bfloat16:
        return kernel
    return jax.lax.bitcast_convert_type(kernel, jnp.uint16)


def _float32(part: Array) -> Float[Array, ...]:
    """A part of a kernel :func:`_as_read`."""
    if part.dtype != jnp.uint16:
        return part.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(part.astype(jnp.uint32) << 16, jnp.float32)


def _padded_product(kernel: Float[Array, "c o w"], x: Float[Array, "t c w"]) -> Float[Array, "t o"]:
    """The tokens as the product's minor axis, padded to a count at which XLA is efficient."""
    tokens = len(x)
    padded = max(2 * ONE_PASS, tokens)
    columns = barrier(jnp.pad(x.transpose(1, 2, 0), ((0, 0), (0, 0), (0, padded - tokens))))
    return _add_up(barrier(_matmul(kernel, columns)))[:, :tokens].T
