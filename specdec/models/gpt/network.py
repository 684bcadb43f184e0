"""GPT-2 in Flax linen: training and the teacher-forced reference.

The parameter tree has the names of T5's decoder: ``token_embedder``, ``position_embedder``, and
``decoder`` with ``layers_<i>``, ``self_attention``, ``mlp``, ``pre_*_layer_norm``. Kernels are
[in, out]; those of query, key and value are one, [in, 3, out].

Arithmetic (Radford et al. 2019): learned positions, LayerNorm with bias before each part, attention
scaled by 1/sqrt(K), softmax and logits in float32.
Shapes: B batch, T length, D d_model, H heads, K head_dim, F d_ff, V vocab, P positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning
from jaxtyping import Array, Float, Int

from specdec.models.gpt.config import GPTConfig
from specdec.models.layer_normed import ACTIVATIONS
from specdec.models.packed import HEADS_AXES, HIDDEN_AXES, MLP_AXES, NEG_INF
from specdec.models.partitioning import constrain
from specdec.models.products.differentiable import product

_STDDEV = 0.02  # Of GPT-2's initial kernels.


def _param(module: nn.Module, name: str, init, shape, axes) -> Array:
    boxed = with_logical_partitioning(init, axes)
    # Inside a module Flax hands the parameter out unboxed.
    return cast(Array, module.param(name, boxed, shape, jnp.float32))


class Dense(nn.Module):
    """x [..., in] @ kernel [in, *features] + bias."""

    features: tuple[int, ...]
    stddev: float
    axes: tuple[str, ...]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "b t i"]) -> Float[Array, "b t *o"]:
        init = nn.initializers.normal(self.stddev)
        shape = (x.shape[-1], *self.features)
        kernel = _param(self, "kernel", init, shape, self.axes)
        bias = _param(self, "bias", nn.initializers.zeros, self.features, self.axes[1:])
        out = product(x.astype(self.dtype), kernel.reshape(len(kernel), -1))
        return out.reshape(*x.shape[:-1], *self.features) + bias.astype(self.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        scale = _param(self, "scale", nn.initializers.ones, (x.shape[-1],), ("embed",))
        bias = _param(self, "bias", nn.initializers.zeros, (x.shape[-1],), ("embed",))
        x32 = x.astype(jnp.float32)
        x32 -= jnp.mean(x32, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        return (x32 * inverse).astype(x.dtype) * scale.astype(x.dtype) + bias.astype(x.dtype)


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t d"]:
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)
        axes = ("embed", "stack", "joined_kv")
        stacked = Dense((3, cfg.d_model), _STDDEV, axes, dtype, name="qkv")(x)
        split = stacked.reshape(*x.shape[:2], 3, cfg.num_heads, cfg.head_dim)
        query, key, value = (constrain(split[:, :, i], HEADS_AXES) for i in range(3))
        logits = jnp.einsum("bqhc,bkhc->bhqk", query * cfg.head_dim**-0.5, key)
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        logits = jnp.where(causal, logits.astype(jnp.float32), NEG_INF)
        weights = jax.nn.softmax(logits, axis=-1).astype(dtype)
        weights = nn.Dropout(cfg.dropout_rate)(weights, deterministic)
        out = jnp.einsum("bhqk,bkhc->bqhc", weights, value).reshape(x.shape)
        return Dense((cfg.d_model,), _into(cfg), ("joined_kv", "embed"), dtype, name="out")(out)


class MlpBlock(nn.Module):
    """act(x wi) wo."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)
        hidden = Dense((cfg.d_ff,), _STDDEV, ("embed", "mlp"), dtype, name="wi")(x)
        hidden = constrain(ACTIVATIONS[cfg.activation](hidden), MLP_AXES)
        return Dense((cfg.d_model,), _into(cfg), ("mlp", "embed"), dtype, name="wo")(hidden)


def _into(config: GPTConfig) -> float:
    """Initial scale of kernels that add to the residual stream (Radford et al., 2.3)."""
    return _STDDEV * (2 * config.num_layers) ** -0.5


class Layer(nn.Module):
    """Attention and feed-forward, a LayerNorm before each."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t d"]:
        cfg = self.config
        norm = functools.partial(LayerNorm, cfg.layer_norm_epsilon)
        dropout = nn.Dropout(cfg.dropout_rate, deterministic=deterministic)
        h = norm(name="pre_self_attention_layer_norm")(x)
        x = x + dropout(Attention(cfg, name="self_attention")(h, deterministic))
        h = norm(name="pre_mlp_layer_norm")(x)
        return constrain(x + dropout(MlpBlock(cfg, name="mlp")(h)), HIDDEN_AXES)


class Stack(nn.Module):
    """Layers, the final norm and, where they are not tied, logits."""

    config: GPTConfig
    embedder: Embed

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t v"]:
        cfg = self.config
        for i in range(cfg.num_layers):
            x = Layer(cfg, name=f"layers_{i}")(x, deterministic)
        x = LayerNorm(cfg.layer_norm_epsilon, name="decoder_norm")(x)
        if cfg.tied_logits:
            return self.embedder.attend(x)
        init = nn.initializers.normal(_STDDEV)
        kernel = _LogitsDense(cfg.vocab_size, init, name="logits_dense")
        return kernel(x.astype(jnp.float32))


class Embed(nn.Module):
    """A table [N, D]; ``attend`` gives tied logits."""

    size: int
    width: int
    stddev: float
    dtype: jnp.dtype

    def setup(self):
        self.embedding = _param(
            self, "embedding", nn.initializers.normal(self.stddev), (self.size, self.width),
            ("vocab", "embed"),
        )  # fmt: skip

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.embedding[tokens].astype(self.dtype)

    def attend(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return product(x.astype(jnp.float32), self.embedding, "oi")


class _LogitsDense(nn.Module):
    features: int
    init: Callable

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        shape = (x.shape[-1], self.features)
        return product(x, _param(self, "kernel", self.init, shape, ("embed", "vocab")))


class Transformer(nn.Module):
    """GPT-2."""

    config: GPTConfig

    def setup(self):
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)
        self.token_embedder = Embed(cfg.vocab_size, cfg.d_model, _STDDEV, dtype)
        self.position_embedder = Embed(cfg.max_positions, cfg.d_model, _STDDEV / 2, dtype)
        self.decoder = Stack(cfg, self.token_embedder)
        self.dropout = nn.Dropout(cfg.dropout_rate)

    def __call__(
        self, tokens: Int[Array, "b t"], *, deterministic: bool = True
    ) -> Float[Array, "b t v"]:
        """Float32 logits of the token after each one, under a causal mask."""
        positions = jnp.arange(tokens.shape[1])[None]
        x = self.token_embedder(tokens) + self.position_embedder(positions)
        return self.decoder(constrain(self.dropout(x, deterministic), HIDDEN_AXES), deterministic)


def init_params(config: GPTConfig, key: jax.Array) -> dict:
    """Random parameters, float32, unboxed (plain arrays)."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return nn.unbox(Transformer(config).init(key, tokens)["params"])
