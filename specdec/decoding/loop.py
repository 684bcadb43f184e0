"""A loop over blocks that can stop, move to larger arrays, take in other rows, and go on.

A decode of one program has arrays for the longest output that is allowed, and each of its steps
reads all of them. Here a decode begins with arrays for :data:`FIRST_BUCKET` tokens. When a row
needs more, all arrays move to the next bucket, whose program is compiled when it is first needed.

All that a loop keeps of its rows is one pytree. What is true of each of its arrays makes that easy:
rows come first, as many for each row of the batch; scalars are shared by all rows; and what has
another size in another bucket, of outputs or inputs, is larger or smaller at the end of its axis,
where nothing is read before it is written.

What a row or one of its samples has produced is never cut: until its result is read, a state holds
all of it, whether it has ended or not. :meth:`Loop.needs` counts it, and sizes change only to a
:func:`capacity` that holds what each row needs that is not read yet.
"""

from __future__ import annotations

import functools
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.compilation import decode_jit
from specdec.core.pytrees import pytree
from specdec.decoding.batches import bucket
from specdec.types import AnyArray, Params, Prompt, Seed

S = TypeVar("S")
R = TypeVar("R", covariant=True)

FIRST_BUCKET = 64  # Tokens for which a decode has arrays at first, unless fewer are allowed.
UNLIMITED = 2**31 - 1  # Blocks.


class Loop(Protocol[S, R]):
    """Decoding of rows block by block: an engine, or a search. It is static, all else is pure.

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
        """The least output bucket that holds each row's output so far, and its next block.

        A row that has ended has no next block, nor have its samples that have.
        """
        ...

    def result(self, params: Params, state: S, size: int) -> R:
        """Results of the rows, with outputs of ``size`` tokens; every leaf is [B, ...]."""
        ...


@pytree
class Status:
    """A loop that has paused.

    Attributes:
      finished: [B] see :meth:`Loop.finished`.
      needs: [B] see :meth:`Loop.needs`.
    """

    finished: Bool[AnyArray, " b"]
    needs: Int[AnyArray, " b"]


def capacity(status: Status, unread: Bool[np.ndarray, " b"] | bool = True) -> int:
    """The output bucket that all rows need whose results have not been read."""
    return bucket(int(np.max(status.needs, initial=1, where=unread)))


@decode_jit(what="a decode", static_argnames=("loop", "output_bucket", "trace"))
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
      given: other arguments of this loop's ``start``; all arguments are its own.
    """
    state = loop.start(
        params, prompt, row_ids, limit, seed, output_bucket=output_bucket, trace=trace, **given
    )
    state = jax.lax.while_loop(
        lambda state: ~jnp.all(loop.finished(state)),
        functools.partial(loop.block, params), state,
    )  # fmt: skip
    return loop.result(params, state, output_bucket)


def _fits(loop: Loop[S, R], state: S, output_bucket: int) -> Bool[Array, ""]:
    """Whether the next block of each row that goes on fits."""
    return jnp.all(loop.finished(state) | (loop.needs(state) <= output_bucket))


@decode_jit(
    what="the loop of a decode", static_argnames=("loop", "output_bucket", "size"),
    donate_argnames="state",
)  # fmt: skip
def resume(
    loop: Loop[S, R], params: Params, state: S, most: Int[Array, ""] | int, *,
    output_bucket: int, size: int,
) -> tuple[S, Status, R]:  # fmt: skip
    """Runs until all rows have ended, or one needs larger arrays.

    Args:
      most: or so many blocks were run.
      output_bucket: tokens for which there are arrays; may be less than the limit.
      size: tokens of each output of the result, at least the limit.
    """

    def goes_on(carry):
        state, blocks = carry
        going = ~jnp.all(loop.finished(state)) & (blocks < most)
        return going & _fits(loop, state, output_bucket)

    state, _ = jax.lax.while_loop(
        goes_on, lambda carry: (loop.block(params, carry[0]), carry[1] + 1), (state, jnp.int32(0))
    )
    return state, Status(loop.finished(state), loop.needs(state)), loop.result(params, state, size)


@decode_jit(what="the start of a decode", static_argnames=("loop", "output_bucket", "trace"))
def start(
    loop: Loop[S, R], params: Params, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool,
) -> S:  # fmt: skip
    """:meth:`Loop.start`: encodes and prefills. :func:`resume` goes on, or rows wait for a place.

    It is a program of its own, so that inputs of another length compile nothing else.
    """
    return loop.start(
        params, prompt, row_ids, limit, seed, output_bucket=output_bucket, trace=trace
    )


@decode_jit(what="larger arrays", static_argnames=("loop", "output_bucket", "trace"))
def resized(
    loop: Loop[S, R], params: Params, state: S, prompt: Prompt, row_ids: Int[AnyArray, " b"],
    limit: Int[Array, ""] | int, seed: Seed, *, output_bucket: int, trace: bool,
) -> S:  # fmt: skip
    """The state with arrays for another output bucket, or for larger inputs.

    Args:
      prompt: any of these sizes.
    """
    start = functools.partial(loop.start, output_bucket=output_bucket, trace=trace)
    shapes = jax.eval_shape(start, params, prompt, row_ids, limit, seed)
    return jax.tree.map(lambda leaf, like: _resized(leaf, like.shape), state, shapes)


@decode_jit(what="an empty batch", static_argnames="loop")
def emptied(loop: Loop[S, R], state: S) -> S:
    """The state without its rows: all have ended."""
    return loop.all_finished(state)


@pytree
class RefillQueue(Generic[S]):
    """Rows that were started, and wait for a place among those of a batch.

    The rows of a batch are in G groups, those that a mesh has apart, and so are these: each waits
    for a place in its own group.

    Attributes:
      state: as many rows as the batch has, in arrays for no more tokens.
      tags: [B] a number by which each is known, as those of the batch are.
      count: [G] how many there are in each group; they come first.
      taken: [G] how many of them have found a place.
    """

    state: S
    tags: Int[AnyArray, " b"]
    count: Int[AnyArray, " g"]
    taken: Int[AnyArray, " g"]


@pytree
class RefillResult(Generic[S, R]):
    """A batch whose rows are replaced, when it has paused.

    Attributes:
      state: the batch's.
      tags: [B] the rows' in their places; -1 for none.
      taken: see :class:`RefillQueue`.
      replaced: [B] the tag of the row whose place each waiting one took; -1 for none.
      left: their results, [B, ...].
      status, result: of the rows that are in their places.
      blocks: scalar, how many were run.
    """

    state: S
    tags: Int[Array, " b"]
    taken: Int[Array, " g"]
    replaced: Int[Array, " b"]
    left: R
    status: Status
    result: R
    blocks: Int[Array, ""]


@decode_jit(
    what="the loop of a refilled batch", static_argnames=("loop", "output_bucket", "size"),
    donate_argnames="state",
)  # fmt: skip
def refill(
    loop: Loop[S, R], params: Params, state: S, tags: Int[AnyArray, " b"], waiting: RefillQueue[S],
    wanted: Int[Array, ""] | int, *, output_bucket: int, size: int,
) -> RefillResult[S, R]:  # fmt: skip
    """Goes on, and gives the place of each row that has ended to one that waits.

    It pauses when nobody waits and ``wanted`` rows have ended, or when a row needs larger arrays.
    """
    groups, nobody = len(waiting.count), jnp.full(tags.shape, -1, jnp.int32)
    count = jnp.asarray(waiting.count)
    left = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(lambda state: loop.result(params, state, size), state),
    )

    def places(carry):
        """Which groups have both a place and a row that waits, and the first place of each."""
        finished = loop.finished(carry[0]).reshape(groups, -1)
        return jnp.any(finished, axis=1) & (carry[2] < count), jnp.argmax(finished, axis=1)

    def replace(carry):
        state, tags, taken, replaced, left = carry
        some, place = places(carry)
        put = functools.partial(_copied, some=some, batch=len(tags))
        result = loop.result(params, state, size)
        replaced, left = jax.tree.map(
            lambda old, new: put(old, new, to=taken, of=place), (replaced, left), (tags, result)
        )
        state, tags = jax.tree.map(
            lambda old, new: put(old, new, to=place, of=taken), (state, tags),
            (waiting.state, jnp.asarray(waiting.tags)),
        )  # fmt: skip
        return state, tags, taken + some, replaced, left

    def block(carry):
        rows, blocks = carry
        rows = jax.lax.while_loop(lambda carry: jnp.any(places(carry)[0]), replace, rows)
        return (loop.block(params, rows[0]), *rows[1:]), blocks + 1

    def goes_on(carry):
        (state, _, taken, *_), _ = carry
        ended = jnp.sum(loop.finished(state)) >= wanted
        return ~(jnp.all(taken >= count) & ended) & _fits(loop, state, output_bucket)

    carry = state, jnp.asarray(tags), jnp.asarray(waiting.taken), nobody, left
    carry, blocks = jax.lax.while_loop(goes_on, block, (carry, jnp.int32(0)))
    state, tags, taken, replaced, left = carry
    status = Status(loop.finished(state), loop.needs(state))
    result = loop.result(params, state, size)
    return RefillResult(state, tags, taken, replaced, left, status, result, blocks)


def _resized(leaf: Array, shape: tuple[int, ...]) -> Array:
    if leaf.shape == shape:
        return leaf
    kept = leaf[tuple(slice(size) for size in shape)]
    return jnp.pad(kept, [(0, size - old) for size, old in zip(shape, kept.shape, strict=True)])


def _copied(
    old: Array, new: Array, to: Int[Array, " g"], of: Int[Array, " g"], some: Bool[Array, " g"],
    *, batch: int,
) -> Array:  # fmt: skip
    """One array with row of[g] of another at to[g], counted inside each group that has one."""
    if not old.ndim:
        return new
    if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        keys, others = jax.random.key_data(old), jax.random.key_data(new)
        copied = _copied(keys, others, to, of, some, batch=batch)
        return jax.random.wrap_key_data(copied, impl=jax.random.key_impl(old))
    each, groups = len(old) // batch, len(some)  # Beams are several rows.
    if groups == 1:  # In place, for there is one.
        rows = jax.lax.dynamic_slice_in_dim(new, of[0] * each, each, axis=0)
        rows = _resized(rows, (each, *old.shape[1:]))
        return jax.lax.dynamic_update_slice_in_dim(old, rows, to[0] * each, axis=0)
    # No group may look into another, which lies elsewhere.
    grouped = (groups, batch // groups, each)
    index = jnp.clip(of, 0, grouped[1] - 1).reshape(groups, *[1] * (old.ndim + 1))
    rows = jnp.take_along_axis(new.reshape(*grouped, *new.shape[1:]), index, axis=1)
    rows = _resized(rows, (groups, 1, each, *old.shape[1:]))
    here = (jnp.arange(grouped[1]) == to[:, None]) & some[:, None]
    here = here.reshape(*here.shape, *[1] * old.ndim)
    return jnp.where(here, rows, old.reshape(*grouped, *old.shape[1:])).reshape(old.shape)
