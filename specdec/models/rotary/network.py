"""The network in Flax linen: training and the teacher-forced reference.

The parameter tree has the names of T5X's decoder: ``token_embedder``, ``encoder`` and ``decoder``
with ``layers_<i>``, ``self_attention``, ``encoder_decoder_attention``, ``mlp``, and norms
``pre_*_layer_norm`` and ``post_*_layer_norm``. Kernels are [in, out]. An encoder with an embedding
of its own has it in ``encoder/token_embedder``.

Shapes: B batch, S input length, T output length, D d_model, H heads, G heads of keys and values,
K head_dim, F d_ff, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import with_logical_partitioning
from jaxtyping import Array, Bool, Float, Int

from specdec.models.packed import HEADS_AXES, HIDDEN_AXES, MLP_AXES, NEG_INF
from specdec.models.partitioning import constrain
from specdec.models.products.differentiable import product
from specdec.models.rotary.config import Rope, RotaryConfig, Stack

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": nn.silu,
    "gelu": functools.partial(nn.gelu, approximate=True),
}


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


def turned(x: Float[Array, "b t h k"], by: Float[Array, "b t k/2"]) -> Float[Array, "b t h k"]:
    """Queries or keys, feature i turned with feature i + K / 2."""
    cos, sin = jnp.cos(by)[:, :, None], jnp.sin(by)[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
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


def embedding_scale(config: Stack, dtype: jnp.dtype) -> Array:
    """The root of d_model, rounded as the activations are."""
    return jnp.asarray(config.d_model**0.5, dtype)


def _param(module: nn.Module, name: str, init, shape, axes) -> Array:
    boxed = with_logical_partitioning(init, axes)
    # Inside a module Flax hands the parameter out unboxed.
    return cast(Array, module.param(name, boxed, shape, jnp.float32))


class Dense(nn.Module):
    """x [..., in] @ kernel [in, out], plus a bias where there is one."""

    features: int
    axes: tuple[str, str]
    dtype: jnp.dtype
    bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "b t i"]) -> Float[Array, "b t o"]:
        init = nn.initializers.normal(x.shape[-1] ** -0.5)
        kernel = _param(self, "kernel", init, (x.shape[-1], self.features), self.axes)
        out = product(x.astype(self.dtype), kernel)
        if not self.bias:
            return out
        zeros = nn.initializers.zeros
        return out + _param(self, "bias", zeros, (self.features,), self.axes[1:]).astype(self.dtype)


class RMSNorm(nn.Module):
    """x / rms(x) * scale, or * (1 + scale), in float32."""

    stack: Stack
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        shifted = self.stack.shifted_norms
        init = nn.initializers.zeros if shifted else nn.initializers.ones
        scale = _param(self, "scale", init, (x.shape[-1],), (self.axis,)) + shifted
        x32 = x.astype(jnp.float32)
        mean = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(mean + self.stack.layer_norm_epsilon)
        return (x32 * inverse * scale).astype(x.dtype)


class Seen(NamedTuple):
    """States that a token attends to, which of them, and how far their keys turn."""

    states: Float[Array, "b m d"]
    mask: Bool[Array, "b t m"]  # T may be 1.
    angles: Float[Array, "b m k/2"] | None  # None where keys do not turn.


class Attention(nn.Module):
    """Attention of several heads, of which some share a key and a value."""

    stack: Stack
    dtype: jnp.dtype
    normed: bool  # Queries and keys have norms.

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], by: Float[Array, "b t k/2"] | None, *seen: Seen
    ) -> Float[Array, "b t d"]:
        stack, axes = self.stack, ("embed", "joined_kv")
        groups, size = stack.num_kv_heads, stack.head_dim
        inner = stack.num_heads * size

        def into(name, features):
            return Dense(features, axes, self.dtype, stack.qkv_biases, name=name)

        def norm(name):
            return RMSNorm(stack, "kv", name=name) if self.normed else lambda x: x

        def heads(x, norm, by):
            x = norm(x.reshape(*x.shape[:2], -1, size))
            return constrain(x if by is None else turned(x, by), HEADS_AXES)

        query = heads(into("query", inner)(x), norm("query_norm"), by) * stack.query_scale
        query = query.reshape(*x.shape[:2], groups, -1, size)
        key, key_norm = into("key", groups * size), norm("key_norm")
        value = into("value", groups * size)
        keys = jnp.concatenate([heads(key(a.states), key_norm, a.angles) for a in seen], axis=1)
        values = jnp.concatenate(
            [heads(value(a.states), lambda x: x, None) for a in seen], axis=1
        )  # fmt: skip
        scores = jnp.einsum("btgrk,bmgk->bgrtm", query, keys).astype(jnp.float32)
        masks = (jnp.broadcast_to(a.mask, (*x.shape[:2], a.mask.shape[2])) for a in seen)
        mask = jnp.concatenate([*masks], axis=-1)[:, None, None]
        scores = jnp.where(mask, capped(scores, stack.attention_softcap), NEG_INF)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        out = jnp.einsum("bgrtm,bmgk->btgrk", weights, values).reshape(*x.shape[:2], inner)
        return Dense(stack.d_model, ("joined_kv", "embed"), self.dtype, name="out")(out)


class MlpBlock(nn.Module):
    """act(x wi_0) * (x wi_1) wo."""

    stack: Stack
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        stack = self.stack
        into = functools.partial(Dense, stack.d_ff, ("embed", "mlp"), self.dtype)
        hidden = ACTIVATIONS[stack.activation](into(name="wi_0")(x)) * into(name="wi_1")(x)
        hidden = constrain(hidden, MLP_AXES)
        return Dense(stack.d_model, ("mlp", "embed"), self.dtype, name="wo")(hidden)


class Layer(nn.Module):
    """Self-attention, cross-attention in a decoder where it is not merged, and feed-forward."""

    config: RotaryConfig
    stack: Stack
    sliding: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], mask: Bool[Array, "b t t"], encoded: Seen | None,
        deterministic: bool,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        stack, dtype = self.stack, x.dtype
        dropout = nn.Dropout(self.config.dropout_rate, deterministic=deterministic)

        def added(name: str, part: Callable[[Array], Array]) -> Array:
            """x plus a part of it, between its norms."""
            h = part(RMSNorm(stack, name=f"pre_{name}_layer_norm")(x))
            if stack.norms_after:
                h = RMSNorm(stack, name=f"post_{name}_layer_norm")(h)
            return x + dropout(h)

        positions = jnp.arange(x.shape[1])[None]
        by = angles(stack.rope_of(self.sliding), stack.head_dim, positions)
        if self.sliding and stack.window is not None:
            mask &= within(stack.window, positions, positions)
        own = Attention(stack, dtype, stack.query_key_norms, name="self_attention")
        merged = self.config.merged_attention
        more = (encoded,) if merged and encoded is not None else ()
        x = added("self_attention", lambda h: own(h, by, Seen(h, mask, by), *more))
        if encoded is not None and not merged:
            cross = Attention(stack, dtype, False, name="encoder_decoder_attention")
            x = added("cross_attention", lambda h: cross(h, None, encoded))
        x = added("mlp", MlpBlock(stack, dtype, name="mlp"))
        return constrain(x, HIDDEN_AXES)


class Embed(nn.Module):
    """A table [V, D] of tokens; ``attend`` gives tied logits."""

    config: RotaryConfig
    stack: Stack

    def setup(self):
        width, scaled = self.stack.d_model, self.config.scaled_embedding
        init = nn.initializers.normal(width**-0.5 if scaled else 0.02)
        shape = (self.config.vocab_size, width)
        self.embedding = _param(self, "embedding", init, shape, ("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        dtype = jnp.dtype(self.config.dtype)
        embedded = self.embedding[tokens].astype(dtype)
        if self.config.scaled_embedding:
            embedded *= embedding_scale(self.stack, dtype)
        return embedded

    def attend(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return product(x.astype(jnp.float32), self.embedding, "oi")


class Encoder(nn.Module):
    """Inputs as the decoder sees them."""

    config: RotaryConfig
    embedder: Embed  # The decoder's.

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "b s"], mask: Bool[Array, "b s"], deterministic: bool
    ) -> Float[Array, "b s d"]:
        cfg, stack = self.config, cast(Stack, self.config.encoder)
        shared = cfg.shared_embedding
        embed = self.embedder if shared else Embed(cfg, stack, name="token_embedder")
        dropout = nn.Dropout(cfg.dropout_rate, deterministic=deterministic)
        x = constrain(dropout(embed(tokens)), HIDDEN_AXES)
        seen = jnp.broadcast_to(mask[:, None], (*x.shape[:2], x.shape[1]))
        for i in range(stack.num_layers):
            layer = Layer(cfg, stack, stack.slides(i), name=f"layers_{i}")
            x = layer(x, seen, None, deterministic)
        return dropout(RMSNorm(stack, name="encoder_norm")(x))


class Decoder(nn.Module):
    """Logits of the token after each one."""

    config: RotaryConfig
    embedder: Embed

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "b t"], encoded: Seen | None, deterministic: bool
    ) -> Float[Array, "b t v"]:
        cfg = self.config
        dropout = nn.Dropout(cfg.dropout_rate, deterministic=deterministic)
        x = constrain(dropout(self.embedder(tokens)), HIDDEN_AXES)
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))[None]
        for i in range(cfg.num_layers):
            x = Layer(cfg, cfg, cfg.slides(i), name=f"layers_{i}")(
                x, causal, encoded, deterministic
            )
        x = dropout(RMSNorm(cfg, name="decoder_norm")(x))
        if cfg.tied_logits:
            logits = self.embedder.attend(x)
        else:
            axes, float32 = ("embed", "vocab"), jnp.dtype("float32")
            logits = Dense(cfg.vocab_size, axes, float32, name="logits_dense")(x)
        return capped(logits, cfg.logits_softcap)


class Transformer(nn.Module):
    """A decoder, or an encoder-decoder."""

    config: RotaryConfig

    def setup(self):
        cfg = self.config
        self.token_embedder = Embed(cfg, cfg)
        self.decoder = Decoder(cfg, self.token_embedder)
        if cfg.encoder is not None:
            self.encoder = Encoder(cfg, self.token_embedder)

    def __call__(
        self, inputs: Int[Array, "b s"], decoder_inputs: Int[Array, "b t"] | None = None,
        encoding: None = None, *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits of the token after each one, under a causal mask.

        Args:
          inputs: an encoder's, of which those that are ``pad_id`` are not seen; or a decoder's, if
            there is no encoder.
          decoder_inputs: of an encoder-decoder.
          encoding: another model's, from which no network of this family starts.
        """
        del encoding
        if self.config.encoder is None:
            return self.decoder(inputs, None, deterministic)
        mask = inputs != self.config.pad_id
        states = self.encoder(inputs, mask, deterministic)
        assert decoder_inputs is not None
        return self.decoder(decoder_inputs, Seen(states, mask[:, None], None), deterministic)


def init_params(config: RotaryConfig, key: jax.Array) -> dict:
    """Random parameters, float32, unboxed (plain arrays)."""
    tokens = jnp.ones((1, 4), jnp.int32)
    return nn.unbox(Transformer(config).init(key, tokens, tokens)["params"])
