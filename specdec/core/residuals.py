"""Acceptance probabilities and residuals: the arithmetic that every verifier shares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from specdec.core.reductions import sum_last
from specdec.types import Distribution, Draft, PointMass


def take(probs: Float[Array, "b n v"], tokens: Int[Array, "b n"]) -> Float[Array, "b n"]:
    """probs[b, n, tokens[b, n]]."""
    return jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0]


def take_position(values: Shaped[Array, "b n ..."], at: Int[Array, " b"]) -> Shaped[Array, "b ..."]:
    """values[b, at[b]]; every ``at`` is in 0..n-1.

    Not written as ``values[rows, at]``: devices that hold different rows would exchange them all.
    """
    index = at.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")[:, 0]


def residual_weights(
    target: Float[Array, "b v"],
    draft: Float[Array, "b v"] | None,
    rejected: Int[Array, " b"],
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


def acceptance_prob(target: Distribution, draft: Draft) -> Float[Array, "b n"]:
    """beta = sum_x min(p(x), q(x)) at each drafted position.

    Source: Leviathan et al. 2023, Theorem 3.5 (beta = 1 - D_LK(p, q)); alpha is its mean.

    Args:
      target: distributions at the N drafted positions.
      draft: tokens [B, N] and their distributions.
    """
    if isinstance(target, PointMass):
        if draft.probs is None:
            return (target.tokens == draft.tokens).astype(jnp.float32)
        return take(draft.probs, target.tokens)
    if draft.probs is None:
        return take(target, draft.tokens)
    return sum_last(jnp.minimum(target, draft.probs))


def leading_true(flags: jax.Array) -> Int[Array, " b"]:
    """How many entries of [B, N] are true before the first false one."""
    return jnp.sum(jnp.cumprod(flags.astype(jnp.int32), axis=-1), axis=-1)


def guess_counts(draft: Draft) -> Int[Array, " b"]:
    """How many guesses each row has, [B]."""
    batch, size = draft.tokens.shape
    if draft.num_guesses is None:
        return jnp.full((batch,), size, jnp.int32)
    return draft.num_guesses
