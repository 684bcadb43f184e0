"""Positions and activations, which the network that is trained and the decode model both compute.

Shapes: B batch, T tokens, M entries, H heads, K head_dim, P positions, D d_model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.models.transformer.config import Absolute, Relative, Rope

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


def relative_position_buckets(
    relative_position: Int[Array, "*shape"], positions: Relative, *, bidirectional: bool
) -> Int[Array, "*shape"]:
    """Buckets ``key_position - query_position``: exact when near, logarithmic when far.

    Source: Raffel et al. 2020, section 2.1; the constants follow Mesh TensorFlow's T5. The
    logarithms are taken once, at trace time, so that every backend rounds them alike.
    """
    num_buckets, farthest = positions.buckets, positions.distance
    if bidirectional:
        num_buckets //= 2
    max_exact = num_buckets // 2
    distance = np.arange(farthest + 1)
    log_ratio = np.log(
        np.maximum(distance, 1).astype(np.float32) / max_exact + np.finfo(np.float32).eps
    ) / np.log(farthest / max_exact)
    far = max_exact + (log_ratio * (num_buckets - max_exact)).astype(np.int32)
    table = np.where(distance < max_exact, distance, np.minimum(far, num_buckets - 1))

    behind = jnp.clip(-relative_position, 0, farthest)
    bucket = jnp.asarray(table, jnp.int32)[behind]
    if bidirectional:
        ahead = jnp.asarray(table, jnp.int32)[jnp.clip(relative_position, 0, farthest)]
        bucket = jnp.where(relative_position > 0, num_buckets + ahead, bucket)
    return bucket


def sinusoids(positions: Absolute, width: int) -> Float[np.ndarray, "p d"]:
    """Each position's sines and then its cosines, rounded as transformers does."""
    half = width // 2
    if positions.kind == "sinusoidal":
        rates, number = 10000.0 ** (-2 * np.arange(half) / width), np.float64
    else:
        steps = np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1))
        rates, number = np.exp(steps), np.float32
    rows = np.arange(positions.offset, positions.offset + positions.count)
    turns = rows[:, None].astype(number) * rates
    return np.concatenate([np.sin(turns), np.cos(turns)], axis=1).astype(np.float32)


def frequencies(rope: Rope, head_dim: int) -> Float[np.ndarray, " k/2"]:
    """Turn of each pair of features for a position, in radians; float32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    turning = np.float32(1) / np.float32(rope.base) ** exponents
    if rope.low is None or rope.high is None or rope.original is None:
        return turning / np.float32(rope.factor)
    turns = rope.original * turning / np.float32(2 * np.pi)
    kept = np.clip((turns - rope.low) / (rope.high - rope.low), 0, 1)
    return (turning * (kept + (1 - kept) / rope.factor)).astype(np.float32)


def angles(rope: Rope, head_dim: int, positions: Int[Array, "b t"]) -> Float[Array, "b t k/2"]:
    """Turn of each pair of features at each position, in radians; float32."""
    return positions[..., None].astype(jnp.float32) * frequencies(rope, head_dim)


def turned(
    x: Float[Array, "b t h k"], by: Float[Array, "b t k/2"],
    kept: Callable[[Array], Array] = lambda x: x,
) -> Float[Array, "b t h k"]:  # fmt: skip
    """Queries or keys, feature i turned with feature i + K / 2.

    Args:
      kept: see ``in_memory`` of the products.
    """
    cos, sin = jnp.cos(by)[:, :, None], jnp.sin(by)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    parts = (
        kept(first * cos) - kept(second * sin), kept(second * cos) + kept(first * sin)
    )  # fmt: skip
    return jnp.concatenate(parts, axis=-1).astype(x.dtype)


def within(
    window: tuple[int, int], positions: Int[Array, "*b t"], entries: Int[Array, "*b m"]
) -> Bool[Array, "*b t m"]:
    """Which entries a window around each position has."""
    behind = positions[..., :, None] - entries[..., None, :]
    return (behind <= window[0]) & (-behind <= window[1])


def capped(x: Array, softcap: float | None) -> Array:
    """C tanh(x / C); x for no C."""
    return x if softcap is None else softcap * jnp.tanh(x / softcap)


def embedding_scale(width: int, dtype: jnp.dtype) -> Array:
    """The root of d_model, rounded as the activations are."""
    return jnp.asarray(width**0.5, dtype)


def windows(x: Float[Array, "b t m"], stride: int) -> Float[Array, "b s 3*m"]:
    """Three frames around each one, or around every second, which a convolution reads.

    A feature's three are side by side, as in transformers' kernels. Outside there are zeros.
    """
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    frames = [padded[:, i : i + x.shape[1] : stride] for i in range(3)]
    return jnp.stack(frames, axis=-1).reshape(len(x), -1, 3 * x.shape[2])


def check_encoding(width: int | None, encoding: Float[Array, "b s w"] | None) -> None:
    """Raises ValueError unless a target's encoding has the width that an encoder starts from."""
    given = None if encoding is None else encoding.shape[-1]
    if given != width:
        raise ValueError(
            f"This network's encoder starts from a target's encoding of width {width}, but was "
            f"given {given} (None: from tokens)."
        )
