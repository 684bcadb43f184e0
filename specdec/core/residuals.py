"""Acceptance probabilities and residuals: the arithmetic that every verifier shares."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from specdec.core import platforms
from specdec.core.reductions import sum_last
from specdec.types import Distribution, Draft, PointMass

# Rows of a batch that TPUs write into one at a time; of more, all entries are written again.
_ROWS_APART = 32


def one_of(tokens: Array, ids: tuple[int, ...]) -> Array:
    """Whether each token is one of a few known ids."""
    nowhere = jnp.zeros_like(tokens, bool)
    return functools.reduce(operator.or_, (tokens == each for each in ids), nowhere)


def take(probs: Shaped[Array, "b n v"], tokens: Int[Array, "b n"]) -> Shaped[Array, "b n"]:
    """probs[b, n, tokens[b, n]]."""
    return jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0]


def take_position(values: Shaped[Array, "b n ..."], at: Int[Array, " b"]) -> Shaped[Array, "b ..."]:
    """values[b, at[b]]; every ``at`` is in 0..n-1.

    Not written as ``values[rows, at]``: devices that hold different rows would exchange them all.
    """
    index = at.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")[:, 0]


def write_at(
    rows: Shaped[Array, "b m ..."], new: Shaped[Array, "b t ..."], at: Int[Array, " b"],
    count: Int[Array, " b"] | None = None,
) -> Shaped[Array, "b m ..."]:  # fmt: skip
    """The rows with new[b], or only its first count[b] entries, set at at[b] of each."""
    if count is not None:
        size = new.shape[1]

        def old(row, at):
            return jax.lax.dynamic_slice_in_dim(row, at, size)

        keep = (jnp.arange(size) < count[:, None]).reshape(-1, size, *[1] * (new.ndim - 2))
        new = jnp.where(keep, new, jax.vmap(old)(rows, at))
    return set_rows(rows, new, at, axis=1)


def set_rows(
    rows: Shaped[Array, "b ..."], new: Shaped[Array, "b ..."], at: Int[Array, " b"], axis: int
) -> Shaped[Array, "b ..."]:
    """Each row with its T new entries along ``axis`` (of the batch) set at at[b]..at[b] + T - 1."""
    platform, batch, count = platforms.current(), len(rows), new.shape[axis]
    if batch == 1 or (platform.name == "tpu" and batch <= _ROWS_APART):
        for row in range(batch):  # In place.
            where = [at[row] if i == axis else 0 for i in range(rows.ndim)]
            where[0] = row
            rows = jax.lax.dynamic_update_slice(rows, new[row : row + 1], where)
        return rows
    if platform == platforms.CPU:
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1)
        return jax.vmap(write)(rows, new, at)
    # Elsewhere that is a loop over the rows.
    shape = [size if i in (0, axis) else 1 for i, size in enumerate(rows.shape)]
    inside = (jnp.arange(rows.shape[axis]) - at[:, None]).reshape(shape)
    from_new = jnp.take_along_axis(new, jnp.clip(inside, 0, count - 1), axis)
    return jnp.where((inside >= 0) & (inside < count), from_new, rows)


def guess_probs(target: Float[Array, "b n1 v"], draft: Draft) -> tuple[Array, Array | float]:
    """p and q of each guess, [B, N]; q is 1 for guesses that are point masses."""
    p = take(target[:, : draft.tokens.shape[1]], draft.tokens)
    return p, 1.0 if draft.probs is None else take(draft.probs, draft.tokens)


def residual_weights(
    target: Float[Array, "b v"], draft: Float[Array, "b v"] | None, rejected: Int[Array, " b"]
) -> Float[Array, "b v"]:
    """Unnormalised residual: max(0, p - q), or p without the rejected token for a point mass.

    Source: Leviathan et al. 2023, Algorithm 1; the point-mass case is its q = one-hot instance.
    Degenerate case: where rounding leaves no mass at all, p itself.
    """
    if draft is None:
        vocab = target.shape[-1]
        weights = jnp.where(jnp.arange(vocab) == rejected[:, None], 0.0, target)
    else:
        weights = jnp.maximum(target - draft, 0.0)
    return jnp.where(sum_last(weights)[..., None] > 0, weights, target)


def acceptance_prob(
    target: Distribution, draft: Draft, lenience: float = 1.0
) -> Float[Array, "b n"]:
    """beta at each drafted position: the probability that a guess drawn from q is accepted.

    sum_x min(p(x) / l, q(x)); at temperature 0 the q of all x with p(x) >= l max p.
    Source: Leviathan et al. 2023, Theorem 3.5 (beta = 1 - D_LK(p, q)), section 2.3 and appendix A.5
    for lenience; alpha is the mean of beta.

    Args:
      target: distributions at the N drafted positions; further ones are not looked at. With
        ``relative`` where a greedy target is judged leniently.
      draft: tokens [B, N] and their distributions.
      lenience: l, in (0, 1]; 1 is exact.
    """
    size = draft.tokens.shape[1]
    if isinstance(target, PointMass):
        if lenience < 1:
            assert target.relative is not None
            allowed = target.relative[:, :size] >= lenience
            if draft.probs is None:
                return take(allowed, draft.tokens).astype(jnp.float32)
            return sum_last(jnp.where(allowed, draft.probs, 0.0))
        if draft.probs is None:
            return (target.tokens[:, :size] == draft.tokens).astype(jnp.float32)
        return take(draft.probs, target.tokens[:, :size])
    p = target[:, :size] if lenience == 1 else target[:, :size] / lenience
    if draft.probs is None:
        return jnp.minimum(1.0, take(p, draft.tokens))
    return sum_last(jnp.minimum(p, draft.probs))


def leading_true(flags: jax.Array) -> Int[Array, " b"]:
    """Number of entries of [B, N] that are true before the first false one."""
    return jnp.sum(jnp.cumprod(flags.astype(jnp.int32), axis=-1), axis=-1)


def guess_counts(draft: Draft) -> Int[Array, " b"]:
    """Number of guesses of each row, [B]."""
    batch, size = draft.tokens.shape
    if draft.num_guesses is None:
        return jnp.full((batch,), size, jnp.int32)
    return draft.num_guesses
