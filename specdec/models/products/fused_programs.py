"""Programs of the kernels of ``fused.py``, in Pallas on Triton.

Each program of a product computes some of its columns for all tokens, so that a kernel's weights
are read once. Each program of an attention is one row's and one head's. What is in which program,
and in what order it is added up, does not depend on how many tokens there are, as long as they are
not more than ``_LEAST_ROWS``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from specdec.models.products.plain import precision

_LEAST_ROWS = 16  # Of a product on a matrix unit.
_PROGRAMS = 120  # About as many as an H100 has multiprocessors, and not far below.
_STAGES = 4  # Blocks of weights on their way at once.
_STAGE_BYTES = 24 * 1024  # Of one stage, at most.
At: TypeAlias = int | Array  # Where a part begins.
_ENTRIES = 128  # Of a cache, looked at together, at most, and how many bytes of them.
_ENTRIES_BYTES = 32 * 1024


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Sizes of the parts of a product: powers of two.

    Attributes:
      rows: all tokens.
      columns: of the product, in one program.
      depth: features in, of one stage.
      span: features of a norm that are read together.
      warps: of a program.
    """

    rows: int
    columns: int
    depth: int
    span: int
    warps: int

    @classmethod
    def of(cls, rows: int, depth: int, columns: int, kernels: int, itemsize: int) -> _Blocks:
        """Sizes for [rows, depth] by so many kernels [depth, columns] of a program."""
        rows = max(_LEAST_ROWS, pl.next_power_of_2(rows))
        wide = 128
        while wide > 16 and pl.cdiv(columns, wide) < _PROGRAMS:
            wide //= 2
        # Full products of float32 are unrolled.
        most = 256 if itemsize < 4 else 32
        deep = most
        while deep > 16 and deep * (rows + kernels * wide) * itemsize > _STAGE_BYTES:
            deep //= 2
        while deep > 64 and depth % deep:
            deep //= 2
        warps = 4 if rows <= 32 else 8
        span = min(pl.next_power_of_2(depth), 2048 * warps // rows)
        return cls(rows, wide, deep, span, warps)


def _block(ref: Any, row: At, rows: int, column: At, columns: int) -> Array:
    """A part of a matrix; 0 beyond the matrix's ends."""
    inside = _inside(ref.shape, row, rows, column, columns)
    other = None if inside is None else 0
    return triton.load(ref.at[pl.ds(row, rows), pl.ds(column, columns)], mask=inside, other=other)


def _inside(shape: tuple[int, ...], row: At, rows: int, column: At, columns: int) -> Array | None:
    """Which of a part [rows, columns] are in a matrix; None where no part reaches beyond it."""
    inside = None
    if shape[0] % rows:
        inside = (row + jnp.arange(rows) < shape[0])[:, None]
    if shape[1] % columns:
        within = (column + jnp.arange(columns) < shape[1])[None]
        inside = within if inside is None else inside & within
    return inside


def _part(ref: Any, at: At, size: int) -> Float[Array, "1 n"]:
    """A part of a vector, as a row of float32; 0 beyond its end."""
    inside = at + jnp.arange(size) < ref.shape[0] if ref.shape[0] % size else None
    other = None if inside is None else 0
    part = triton.load(ref.at[pl.ds(at, size)], mask=inside, other=other)
    return part.astype(jnp.float32)[None]


def _dot(a: Array, b: Array) -> Float[Array, "m n"]:
    return jnp.dot(a, b, precision=precision(a), preferred_element_type=jnp.float32)


def _call(program: Callable[..., None], args: Any, **kwargs: Any) -> Any:
    """A kernel; interpreted on a CPU, where tests run code for a GPU."""
    kernel = pl.pallas_call(program, **kwargs)
    interpreted = pl.pallas_call(program, interpret=True, **kwargs)
    return jax.lax.platform_dependent(*args, cpu=interpreted, default=kernel)


@functools.partial(jax.jit, static_argnames=("dtype", "epsilon", "act", "gated", "tied"))
def product(
    x, kernel, norm, bias, onto, *, dtype, epsilon=0.0, act=None, gated=False, tied=False
):  # fmt: skip
    """onto + act(norm(x) kernel + bias), with what is not None."""
    *lead, depth = x.shape
    halves = 2 if gated else 1
    columns = kernel.shape[0] if tied else kernel.shape[1] // halves
    rows = x.reshape(-1, depth)
    if onto is not None:
        onto = onto.reshape(-1, columns)
    blocks = _Blocks.of(len(rows), depth, columns, halves, x.dtype.itemsize)
    args = (rows, halves * (kernel,), norm, bias, onto)
    specs = jax.tree.map(lambda a: pl.BlockSpec(a.shape, lambda i: (0,) * a.ndim), args)
    shape = (columns, depth) if tied else (depth, columns)
    half = [pl.BlockSpec(shape, lambda i, at=at: (0, at)) for at in range(halves)]
    out = _call(
        functools.partial(_product_program, blocks=blocks, epsilon=epsilon, act=act, tied=tied),
        args,
        grid=(pl.cdiv(columns, blocks.columns),),
        in_specs=(specs[0], tuple(half), *specs[2:]),
        out_shape=jax.ShapeDtypeStruct((len(rows), columns), dtype),
        compiler_params=triton.CompilerParams(blocks.warps, _STAGES),
    )
    return out.reshape(*lead, columns)


def _product_program(
    x_ref, kernel_refs, norm_refs, bias_ref, onto_ref, out_ref, *, blocks, epsilon, act, tied
):  # fmt: skip
    rows, columns, deep = blocks.rows, blocks.columns, blocks.depth
    at = pl.program_id(0) * columns
    normed = _normed(x_ref, norm_refs, blocks, epsilon) if norm_refs else lambda x, at: x

    def add(i, sums):
        k = i * deep
        x = normed(_block(x_ref, 0, rows, k, deep), k)
        if tied:
            return [s + _dot(x, _block(w, at, columns, k, deep).T)
                    for s, w in zip(sums, kernel_refs, strict=True)]  # fmt: skip
        return [s + _dot(x, _block(w, k, deep, at, columns))
                for s, w in zip(sums, kernel_refs, strict=True)]  # fmt: skip

    sums = [jnp.zeros((rows, columns), jnp.float32) for _ in kernel_refs]
    sums = jax.lax.fori_loop(0, pl.cdiv(x_ref.shape[1], deep), add, sums)
    if bias_ref is not None:
        sums = [s + _part(bias_ref, at, columns) for s in sums]
    if act is not None:
        sums[0] = act(sums[0])
    out = functools.reduce(jnp.multiply, sums)
    if onto_ref is not None:
        out += _block(onto_ref, 0, rows, at, columns).astype(jnp.float32)
    triton.store(
        out_ref.at[pl.ds(0, rows), pl.ds(at, columns)], out.astype(out_ref.dtype),
        mask=_inside(out_ref.shape, 0, rows, at, columns),
    )  # fmt: skip


def _normed(x_ref, norm_refs, blocks, epsilon) -> Callable[[Array, At], Array]:
    """The norm of tokens, as a function of a part of their features and where it begins."""
    depth, span = x_ref.shape[1], blocks.span

    def mean(of):
        total = jnp.zeros((blocks.rows, span), jnp.float32)
        for at in map(jnp.int32, range(0, depth, span)):  # Reads that do not wait for each other.
            values = of(_block(x_ref, 0, blocks.rows, at, span).astype(jnp.float32))
            inside = _inside((blocks.rows, depth), 0, blocks.rows, at, span)
            total += values if inside is None else jnp.where(inside, values, 0.0)
        return jnp.sum(total, axis=1, keepdims=True) / depth

    scale_ref, *bias_ref = norm_refs
    centre = mean(lambda x: x) if bias_ref else 0.0
    inverse = jax.lax.rsqrt(mean(lambda x: jnp.square(x - centre)) + epsilon)

    def normed(x, at):
        part = (x.astype(jnp.float32) - centre) * inverse * _part(scale_ref, at, x.shape[1])
        for ref in bias_ref:
            part += _part(ref, at, x.shape[1])
        return part.astype(x.dtype)

    return normed


@functools.partial(jax.jit, static_argnames=("scale",))
def attention(query, keys, values, bias, start, *, scale):
    """Attention, and with ``start`` the cache that it wrote to."""
    batch, heads, _, width = keys.shape
    tokens, span = query.shape[1], _ENTRIES
    while span * pl.next_power_of_2(width) * keys.dtype.itemsize > _ENTRIES_BYTES:
        span //= 2
    part = (None, tokens, width)
    queries = [pl.BlockSpec(part, lambda b, h, n=n: (b, 0, n * heads + h)) for n in range(3)]
    entries = pl.BlockSpec((None, None, *keys.shape[2:]), lambda b, h: (b, h, 0, 0))
    many = [size > 1 for size in bias.shape[:2]]
    biases = pl.BlockSpec(
        (None, None, *bias.shape[2:]), lambda b, h: (b * many[0], h * many[1], 0, 0)
    )
    out_shape = [jax.ShapeDtypeStruct((batch, tokens, heads * width), query.dtype)]
    out_specs, aliases = [queries[0]], {}
    if start is None:
        new, new_specs = (query,), (queries[0],)
    else:
        new, new_specs = 3 * (query,), tuple(queries)
        out_shape += [jax.ShapeDtypeStruct(keys.shape, keys.dtype)] * 2
        out_specs += [entries] * 2
        aliases = {3: 1, 4: 2}
    out = _call(
        functools.partial(_attention_program, span=span, scale=scale),
        (new, (keys, values), bias, start),
        grid=(batch, heads),
        in_specs=(
            new_specs, (entries, entries), biases,
            None if start is None else pl.BlockSpec((None,), lambda b, h: (b,)),
        ),
        out_shape=out_shape,
        out_specs=out_specs,
        input_output_aliases=aliases,
        compiler_params=triton.CompilerParams(num_warps=4 if tokens <= 32 else 8, num_stages=2),
    )  # fmt: skip
    return tuple(out) if start is not None else out[0]


def _attention_program(
    new_refs, entries_refs, bias_ref, start_ref, out_ref, *written_refs, span, scale
):  # fmt: skip
    (tokens, width), capacity = new_refs[0].shape, bias_ref.shape[1]
    rows = max(_LEAST_ROWS, pl.next_power_of_2(tokens))
    wide = max(16, pl.next_power_of_2(width))
    query = (_block(new_refs[0], 0, rows, 0, wide) * scale).astype(out_ref.dtype)
    start, end = None, capacity
    if start_ref is not None:
        start = jnp.clip(start_ref[...], 0, capacity - tokens)
        end = start + tokens
        inside = _inside((tokens, width), 0, rows, 0, wide)
        for new_ref, written_ref in zip(new_refs[1:], written_refs, strict=True):
            triton.store(
                written_ref.at[pl.ds(start, rows), pl.ds(0, wide)],
                _block(new_ref, 0, rows, 0, wide), mask=inside,
            )  # fmt: skip

    def entries(of: int, at):
        """Keys (0) or values (1). What was just written is read where it came from."""
        old = _block(entries_refs[of], at, span, 0, wide)
        if start is None:
            return old
        slots, columns = (at + jnp.arange(span) - start)[:, None], jnp.arange(wide)[None]
        is_new = (slots >= 0) & (slots < tokens)
        new = triton.load(
            new_refs[1 + of].at[jnp.clip(slots, 0, tokens - 1), columns],
            mask=is_new & (columns < width), other=0,
        )  # fmt: skip
        return jnp.where(is_new, new, old)

    def look(i, carry):
        highest, total, mixed = carry
        at = i * span
        scores = _dot(query, entries(0, at).T)
        scores += _block(bias_ref, 0, rows if bias_ref.shape[0] > 1 else 1, at, span)
        if capacity % span:
            scores = jnp.where((at + jnp.arange(span) < capacity)[None], scores, -jnp.inf)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1, keepdims=True))
        weights, rest = jnp.exp(scores - higher), jnp.exp(highest - higher)
        values = entries(1, at)
        total = total * rest + jnp.sum(weights, axis=1, keepdims=True)
        return higher, total, mixed * rest + _dot(weights.astype(values.dtype), values)

    carry = (
        jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1)), jnp.zeros((rows, wide), jnp.float32)
    )  # fmt: skip
    _, total, mixed = jax.lax.fori_loop(0, pl.cdiv(end, span), look, carry)
    triton.store(
        out_ref.at[pl.ds(0, rows), pl.ds(0, wide)], (mixed / total).astype(out_ref.dtype),
        mask=_inside(out_ref.shape, 0, rows, 0, wide),
    )  # fmt: skip
