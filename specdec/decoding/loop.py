"""A loop over blocks that can stop, move to larger arrays, take in other rows, and go on.

A decode of one program has arrays for the longest output that is allowed, and each of its steps
reads all of them. Here a decode begins with arrays for :data:`FIRST_BUCKET` tokens. When a row
needs more, all arrays move to the next bucket, whose program is compiled when it is first needed.

All that a loop keeps of its rows is one pytree. What is true of each of its arrays makes that easy:
rows come first, as many for each row of the batch; scalars are shared by all rows; and what has
another size in another bucket, of outputs or inputs, is larger or smaller at the end of its axis,
where nothing is read before it is written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec.core import platforms
from specdec.core.compilation import decode_jit
from specdec.pytrees import pytree
from specdec.types import AnyArray, Params, Prompt, Seed

S = TypeVar("S")
R = TypeVar("R", covariant=True)

FIRST_BUCKET = 64  # Tokens for which a decode has arrays at first, unless fewer are allowed.


class Loop(Protocol[S, R]):
    """What decodes rows block by block: an engine, or a search. It is static, all else is pure.

    S is its state, R what comes of it.
    """

    def start(
        self, params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
        limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
    ) -> S:  # fmt: skip
        """The state before the first block; see :meth:`specdec.decoding.engine.Engine.start`."""
        ...

    def block(self, params: Params, state: S) -> S:
        """One more block of every unfinished row."""
        ...

    def finished(self, state: S) -> Bool[Array, " b"]:
        """Which rows have ended."""
        ...

    def all_finished(self, state: S) -> S:
        """The state with all rows ended."""
        ...

    def needs(self, state: S) -> Int[Array, " b"]:
        """The least output bucket in which each row's next block fits."""
        ...

    def result(self, params: Params, state: S, size: int) -> R:
        """What the rows have come to, with outputs of ``size`` tokens; every leaf is [B, ...]."""
        ...


@pytree
class Status:
    """A loop that has paused.

    Attributes:
      finished: [B] see :meth:`Loop.finished`.
      needs: [B] see :meth:`Loop.needs`.
      blocks: scalar, how many were run since it went on.
    """

    finished: Bool[Array, " b"]
    needs: Int[Array, " b"]
    blocks: Int[Array, ""]


@decode_jit(static_argnames=("loop", "output_bucket", "trace"))
def decode(
    loop: Loop[S, R], params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool = False,
    **given: Any,
) -> R:  # fmt: skip
    """Decodes a batch in one program, the whole of it in one ``lax.while_loop``.

    Rows advance and end apart; a row's output does not depend on its neighbours. With a lossless
    verifier the output's distribution is the target's own under the engine's sampling.

    Args:
      limit: tokens of an output, at most ``output_bucket``.
      given: what else this loop's ``start`` takes; all arguments are its own.
    """
    state = loop.start(
        params, prompt, row_ids, limit, seed, output_bucket=output_bucket, trace=trace, **given
    )
    state = jax.lax.while_loop(
        lambda state: ~jnp.all(loop.finished(state)),
        functools.partial(loop.block, params), state,
    )  # fmt: skip
    return loop.result(params, state, output_bucket)


def _paused(
    loop: Loop[S, R], params: Params, state: S, output_bucket: int, size: int, groups: int = 1,
    wanted: Int[Array, ""] | int | None = None,
) -> tuple[S, Status, R]:  # fmt: skip
    """Runs until each group of rows has so many that have ended, or one needs larger arrays."""

    def goes_on(carry):
        finished = loop.finished(state := carry[0])
        fits = jnp.all(finished | (loop.needs(state) <= output_bucket))
        ended = jnp.sum(finished.reshape(groups, -1), axis=1)
        most = len(finished) // groups if wanted is None else wanted
        return fits & jnp.any(ended < most)

    state, blocks = jax.lax.while_loop(
        goes_on, lambda carry: (loop.block(params, carry[0]), carry[1] + 1), (state, jnp.int32(0))
    )
    status = Status(loop.finished(state), loop.needs(state), blocks)
    return state, status, loop.result(params, state, size)


@decode_jit(static_argnames=("loop", "output_bucket", "size", "trace"))
def begin(
    loop: Loop[S, R], params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, size: int, trace: bool = False,
) -> tuple[S, Status, R]:  # fmt: skip
    """Starts a batch and runs until all rows have ended, or one needs larger arrays.

    Args:
      output_bucket: tokens for which there are arrays; may be less than ``limit``.
      size: tokens of each output of the result, at least ``limit``.
      All else: see :meth:`specdec.decoding.engine.Engine.start`.
    """
    state = loop.start(
        params, prompt, row_ids, limit, seed, output_bucket=output_bucket, trace=trace
    )
    return _paused(loop, params, state, output_bucket, size)


@decode_jit(static_argnames=("loop", "output_bucket", "size", "groups"), donate_argnames="state")
def resume(
    loop: Loop[S, R], params: Params, state: S, wanted: Int[Array, ""] | int, *,
    output_bucket: int, size: int, groups: int,
) -> tuple[S, Status, R]:  # fmt: skip
    """Goes on until each group of rows has ``wanted`` that ended, or one needs larger arrays."""
    return _paused(loop, params, state, output_bucket, size, groups, wanted)


@decode_jit(static_argnames=("loop", "output_bucket", "trace", "on_mesh"))
def idle(
    loop: Loop[S, R], params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool, on_mesh: bool,
) -> S:  # fmt: skip
    """A state of no rows yet: all have ended.

    Args:
      on_mesh: whether its arrays lie on several devices. What lies where follows from how they are
        made, so they are.
    """
    given = params, prompt, row_ids, limit, seed
    if on_mesh:
        state = loop.start(*given, output_bucket=output_bucket, trace=trace)
    else:
        shapes = _shapes(loop, output_bucket, trace)(*given)
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return loop.all_finished(state)


@decode_jit(static_argnames=("loop", "output_bucket", "trace"), donate_argnames="state")
def refill(
    loop: Loop[S, R], params: Params, state: S, at: Int[AnyArray, "g n"], prompt: Prompt,
    row_ids: Int[AnyArray, " r"], limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int,
    trace: bool,
) -> S:  # fmt: skip
    """Other rows take the places of rows that have ended.

    Args:
      at: G groups of N rows of the state, counted inside each group; R = G N. (Groups are those
        that a mesh has apart.)
      prompt: of the new rows, of the state's size of inputs.
    """
    batch = len(loop.finished(state))
    with platforms.joining(batch, at.size):
        new = loop.start(
            params, prompt, row_ids, limit, seed, output_bucket=output_bucket, trace=trace
        )
    return jax.tree.map(functools.partial(_with_rows, at=at, batch=batch), state, new)


@decode_jit(static_argnames=("loop", "output_bucket", "trace"))
def resized(
    loop: Loop[S, R], params: Params, state: S, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool,
) -> S:  # fmt: skip
    """The state with arrays for another output bucket, or for larger inputs.

    Args:
      prompt: any of these sizes.
    """
    shapes = _shapes(loop, output_bucket, trace)(params, prompt, row_ids, limit, seed)
    return jax.tree.map(lambda leaf, like: _resized(leaf, like.shape), state, shapes)


def _shapes(loop: Loop[S, R], output_bucket: int, trace: bool) -> Callable[..., Any]:
    """The shapes of a state."""
    start = functools.partial(loop.start, output_bucket=output_bucket, trace=trace)
    return lambda *args: jax.eval_shape(start, *args)


def _resized(leaf: Array, shape: tuple[int, ...]) -> Array:
    if leaf.shape == shape:
        return leaf
    kept = leaf[tuple(slice(size) for size in shape)]
    return jnp.pad(kept, [(0, size - old) for size, old in zip(shape, kept.shape, strict=True)])


def _with_rows(old: Array, new: Array, at: Int[AnyArray, "g n"], batch: int) -> Array:
    """The array of a state with some rows of another."""
    if not old.ndim:
        return new
    if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        data = _with_rows(jax.random.key_data(old), jax.random.key_data(new), at, batch)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(old))
    (groups, count), each = at.shape, len(old) // batch
    if groups == 1 and platforms.current() == platforms.CPU:
        for row in range(count):  # In place.
            rows = new[row * each : (row + 1) * each]
            old = jax.lax.dynamic_update_slice_in_dim(old, rows, at[0, row] * each, axis=0)
        return old
    # Elsewhere that would be a program of many small parts, and no group may look into another.
    size = math.prod(old.shape[1:])
    taken = at[:, None] == jnp.arange(batch // groups)[:, None]  # [G, B / G, N]
    source = jnp.argmax(taken, axis=2)[..., None]
    rows = jnp.take_along_axis(
        new.reshape(groups, count, each * size), source, axis=1, mode="promise_in_bounds"
    )
    kept = old.reshape(groups, batch // groups, each * size)
    return jnp.where(jnp.any(taken, axis=2)[..., None], rows, kept).reshape(old.shape)
