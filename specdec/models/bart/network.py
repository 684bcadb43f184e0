"""BART and its kin in Flax linen: training and the teacher-forced reference.

The parameter tree has T5's names where it has T5's parts: ``token_embedder``, ``encoder`` and
``decoder`` with ``layers_<i>``, ``self_attention``, ``encoder_decoder_attention``, ``mlp``. Kernels
are [in, out]. Each part has a norm, ``<part>_layer_norm``, before or after it.

Arithmetic: attention scaled by 1/sqrt(K), softmax and logits in float32.
Shapes: B batch, S input length, T output length, D d_model, H heads, K head_dim, V vocab,
P positions.
"""

from __future__ import annotations

import functools
import math
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import with_logical_partitioning
from jaxtyping import Array, Bool, Float, Int

from specdec.models.bart.config import BartConfig
from specdec.models.gpt.network import Dense, Embed, LayerNorm
from specdec.models.layer_normed import ACTIVATIONS
from specdec.models.packed import HEADS_AXES, HIDDEN_AXES, MLP_AXES, NEG_INF
from specdec.models.partitioning import constrain
from specdec.models.products.differentiable import product

_STDDEV = 0.02  # Of initial kernels and embeddings.


def sinusoids(config: BartConfig) -> Float[np.ndarray, "p d"]:
    """Each position's sines and then its cosines, rounded as transformers does."""
    half = config.d_model // 2
    if config.positions == "sinusoidal":
        rates, number = 10000.0 ** (-2 * np.arange(half) / config.d_model), np.float64
    else:
        steps = np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1))
        rates, number = np.exp(steps), np.float32
    rows = np.arange(config.position_offset, config.position_offset + config.max_positions)
    angles = rows[:, None].astype(number) * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class Attention(nn.Module):
    """Attention of several heads: of x to ``attended``."""

    config: BartConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b q d"], attended: Float[Array, "b k d"],
        mask: Bool[Array, "#b 1 #q k"], deterministic: bool,
    ) -> Float[Array, "b q d"]:  # fmt: skip
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)

        def project(name, x):
            projected = _dense(cfg, cfg.d_model, ("embed", "joined_kv"), name)(x)
            return constrain(projected.reshape(*x.shape[:2], cfg.num_heads, -1), HEADS_AXES)

        query = project("query", x) * cfg.head_dim**-0.5
        key, value = project("key", attended), project("value", attended)
        logits = jnp.einsum("bqhc,bkhc->bhqk", query, key).astype(jnp.float32)
        weights = jax.nn.softmax(jnp.where(mask, logits, NEG_INF), axis=-1).astype(dtype)
        out = jnp.einsum("bhqk,bkhc->bqhc", weights, value).reshape(x.shape)
        return _dense(cfg, cfg.d_model, ("joined_kv", "embed"), "out")(out)


class MlpBlock(nn.Module):
    """act(x wi) wo."""

    config: BartConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        cfg = self.config
        hidden = ACTIVATIONS[cfg.activation](_dense(cfg, cfg.d_ff, ("embed", "mlp"), "wi")(x))
        return _dense(cfg, cfg.d_model, ("mlp", "embed"), "wo")(constrain(hidden, MLP_AXES))


def _dense(config: BartConfig, size: int, axes: tuple[str, str], name: str) -> Dense:
    return Dense((size,), _STDDEV, axes, jnp.dtype(config.dtype), name=name)


class Layer(nn.Module):
    """One layer; a decoder's (``cross``) attends to ``encoded``, too."""

    config: BartConfig
    cross: bool

    @nn.compact
    def __call__(self, x, mask, encoded, encoded_mask, deterministic):
        cfg = self.config
        dropout = nn.Dropout(cfg.dropout_rate, deterministic=deterministic)

        def added(name, part, x):
            norm = LayerNorm(cfg.layer_norm_epsilon, name=f"{name}_layer_norm")
            if cfg.pre_norm:
                return x + dropout(part(norm(x)))
            return norm(x + dropout(part(x)))

        own = Attention(cfg, name="self_attention")
        x = added("self_attention", lambda h: own(h, h, mask, deterministic), x)
        if self.cross:
            other = Attention(cfg, name="encoder_decoder_attention")
            x = added(
                "cross_attention", lambda h: other(h, encoded, encoded_mask, deterministic), x
            )
        return constrain(added("mlp", MlpBlock(cfg, name="mlp"), x), HIDDEN_AXES)


class Stack(nn.Module):
    """Layers, with norms before and behind them where there are such; of a decoder, logits."""

    config: BartConfig
    cross: bool
    embedder: Embed  # Of tied logits.

    @nn.compact
    def __call__(self, x, mask, encoded=None, encoded_mask=None, deterministic=True):
        cfg = self.config
        norm = functools.partial(LayerNorm, cfg.layer_norm_epsilon)
        if cfg.embedding_norm:
            x = norm(name="embedding_norm")(x)
        x = nn.Dropout(cfg.dropout_rate)(x, deterministic)
        depth = cfg.num_decoder_layers if self.cross else cfg.num_encoder_layers
        for i in range(depth):
            layer = Layer(cfg, self.cross, name=f"layers_{i}")
            x = layer(x, mask, encoded, encoded_mask, deterministic)
        if cfg.pre_norm:
            x = norm(name="decoder_norm" if self.cross else "encoder_norm")(x)
        if not self.cross:
            return x
        tied = self.embedder.attend(x) if cfg.tied_logits else None
        return Logits(cfg, name="logits_dense")(x, tied)


class Logits(nn.Module):
    """Logits that are not the embedding's alone."""

    config: BartConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], tied: Float[Array, "b t v"] | None
    ) -> Float[Array, "b t v"]:
        cfg = self.config
        if tied is None:
            shape, init = (cfg.d_model, cfg.vocab_size), nn.initializers.normal(_STDDEV)
            kernel = self._param("kernel", init, shape, ("embed", "vocab"))
            tied = product(x.astype(jnp.float32), kernel)
        if not cfg.logits_bias:
            return tied
        return tied + self._param("bias", nn.initializers.zeros, (cfg.vocab_size,), ("vocab",))

    def _param(self, name, init, shape, axes) -> Array:
        boxed = with_logical_partitioning(init, axes)
        return cast(Array, self.param(name, boxed, shape, jnp.float32))


class Transformer(nn.Module):
    """``__call__`` is teacher-forced; ``encode`` and ``decode`` are its two halves."""

    config: BartConfig

    def setup(self):
        cfg, dtype = self.config, jnp.dtype(self.config.dtype)
        embed = functools.partial(Embed, width=cfg.d_model, stddev=_STDDEV, dtype=dtype)
        self.token_embedder = embed(cfg.vocab_size)
        if cfg.encoder_vocab_size is not None:
            self.encoder_token_embedder = embed(cfg.encoder_vocab_size)
        if cfg.positions == "learned":
            rows = cfg.position_offset + cfg.max_positions
            self.encoder_position_embedder = embed(rows)
            self.decoder_position_embedder = embed(rows)
        self.encoder = Stack(cfg, False, self.token_embedder)
        self.decoder = Stack(cfg, True, self.token_embedder)

    def encode(
        self, inputs: Int[Array, "b s"], *, deterministic: bool = True
    ) -> Float[Array, "b s d"]:
        """Encoder output; positions holding ``pad_id`` are never attended to."""
        cfg = self.config
        own = cfg.encoder_vocab_size is not None
        embedder = self.encoder_token_embedder if own else self.token_embedder
        positions = self.encoder_position_embedder if cfg.positions == "learned" else None
        x = self._embedded(embedder, positions, inputs)
        return self.encoder(x, self._input_mask(inputs), deterministic=deterministic)

    def decode(
        self, encoded: Float[Array, "b s d"], inputs: Int[Array, "b s"],
        decoder_inputs: Int[Array, "b t"], *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits for every position of ``decoder_inputs`` under a causal mask."""
        cfg, length = self.config, decoder_inputs.shape[1]
        positions = self.decoder_position_embedder if cfg.positions == "learned" else None
        x = self._embedded(self.token_embedder, positions, decoder_inputs)
        causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
        return self.decoder(x, causal, encoded, self._input_mask(inputs), deterministic)

    def __call__(
        self, inputs: Int[Array, "b s"], decoder_inputs: Int[Array, "b t"], *,
        deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        encoded = self.encode(inputs, deterministic=deterministic)
        return self.decode(encoded, inputs, decoder_inputs, deterministic=deterministic)

    def _input_mask(self, inputs: Int[Array, "b s"]) -> Bool[Array, "b 1 1 s"]:
        return (inputs != self.config.pad_id)[:, None, None, :]

    def _embedded(
        self, embedder: Embed, positions: Embed | None, tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t d"]:
        cfg, count = self.config, tokens.shape[1]
        x = embedder(tokens)
        if cfg.scaled_embedding:
            x *= cfg.d_model**0.5
        if positions is None:
            return constrain(x + sinusoids(cfg)[:count].astype(x.dtype), HIDDEN_AXES)
        rows = cfg.position_offset + jnp.arange(count)[None]
        return constrain(x + positions(rows), HIDDEN_AXES)


def init_params(config: BartConfig, key: jax.Array) -> dict:
    """Random parameters, float32, unboxed (plain arrays); the padding's embeddings are zeros."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = nn.unbox(Transformer(config).init(key, tokens, tokens)["params"])
    for name in {"token_embedder", "encoder_token_embedder"} & params.keys():
        params[name]["embedding"] = params[name]["embedding"].at[config.pad_id].set(0.0)
    return params
