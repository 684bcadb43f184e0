"""T5 encoder-decoder in Flax linen: training and the teacher-forced reference.

The parameter tree is T5X's (``t5x.examples.t5.network``): ``token_embedder``, ``encoder`` and
``decoder`` with ``layers_<i>``, ``attention`` / ``self_attention`` / ``encoder_decoder_attention``,
``mlp``, ``pre_*_layer_norm``, ``relpos_bias``, ``logits_dense``. Kernels are [in, out]. A UMT5 has
``relpos_bias`` in each layer, as ``t5x.examples.scalable_t5`` does.

Arithmetic (Raffel et al. 2020; T5 v1.1): pre-RMSNorm without bias, relative position bias shared by
all layers of a stack (not in UMT5), no 1/sqrt(K) in attention, softmax and logits in float32.
Shapes: B batch, S input length, T output length, D d_model, H heads, K head_dim, F d_ff, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import with_logical_partitioning
from jaxtyping import Array, Bool, Float, Int

from specdec.models.packed import HEADS_AXES, HIDDEN_AXES, MLP_AXES, NEG_INF
from specdec.models.partitioning import constrain
from specdec.models.products.differentiable import product
from specdec.models.t5.config import T5Config


def relative_position_buckets(
    relative_position: Int[Array, "*shape"], config: T5Config, *, bidirectional: bool
) -> Int[Array, "*shape"]:
    """Buckets ``key_position - query_position``: exact when near, logarithmic when far.

    Source: Raffel et al. 2020, section 2.1; the constants follow Mesh TensorFlow's T5. The
    logarithms are taken once, at trace time, so that every backend rounds them alike.
    """
    num_buckets = config.relative_attention_num_buckets
    farthest = config.relative_attention_max_distance
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


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=True),
    "silu": nn.silu,
}


def _param(
    module: nn.Module, name: str, init, shape: tuple[int, ...], axes: tuple[str, ...]
) -> Array:
    boxed = with_logical_partitioning(init, axes)
    # Inside a module Flax hands the parameter out unboxed.
    return cast(Array, module.param(name, boxed, shape, jnp.float32))


class Dense(nn.Module):
    """x [..., in] @ kernel [in, out], no bias."""

    features: int
    init_stddev: float
    axes: tuple[str, str]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "... d_in"]) -> Float[Array, "... d_out"]:
        init = nn.initializers.normal(self.init_stddev)
        kernel = _param(self, "kernel", init, (x.shape[-1], self.features), self.axes)
        return product(x.astype(self.dtype), kernel)


class RMSNorm(nn.Module):
    """T5's layer norm: x / rms(x) * scale, the mean square in float32; no mean, no bias."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        scale = _param(self, "scale", nn.initializers.ones, (x.shape[-1],), ("embed",))
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        return (x32 * inverse).astype(x.dtype) * scale.astype(x.dtype)


class RelativePositionBias(nn.Module):
    """Bias [1, H, Q, K] added to attention logits; the table is [H, num_buckets] as in T5X."""

    config: T5Config
    bidirectional: bool

    @nn.compact
    def __call__(self, query_length: int, key_length: int) -> Float[Array, "1 h q k"]:
        cfg = self.config
        table = _param(
            self, "rel_embedding", nn.initializers.normal(0.1),
            (cfg.num_heads, cfg.relative_attention_num_buckets), ("heads", "relpos_buckets"),
        )  # fmt: skip
        relative = jnp.arange(key_length)[None, :] - jnp.arange(query_length)[:, None]
        bucket = relative_position_buckets(relative, cfg, bidirectional=self.bidirectional)
        return table[:, bucket][None]


class Attention(nn.Module):
    """Multi-head dot-product attention without scaling (folded into the initialisation)."""

    config: T5Config

    @nn.compact
    def __call__(
        self, inputs_q: Float[Array, "b q d"], inputs_kv: Float[Array, "b k d"],
        mask: Bool[Array, "b 1 #q k"], bias: Float[Array, "1 h q k"] | None, deterministic: bool,
    ) -> Float[Array, "b q d"]:  # fmt: skip
        cfg = self.config
        dtype = jnp.dtype(cfg.dtype)
        inner, split = cfg.num_heads * cfg.head_dim, (cfg.num_heads, cfg.head_dim)

        def project(name, x, fan_in=cfg.d_model):
            return Dense(inner, fan_in**-0.5, ("embed", "joined_kv"), dtype, name=name)(x)

        # The query's 1/sqrt(K) lives in its initialisation, as in Mesh TensorFlow.
        query = project("query", inputs_q, cfg.d_model * cfg.head_dim)
        key, value = project("key", inputs_kv), project("value", inputs_kv)
        query, key, value = (
            constrain(a.reshape(*a.shape[:-1], *split), HEADS_AXES) for a in (query, key, value)
        )

        logits = jnp.einsum("bqhc,bkhc->bhqk", query, key).astype(jnp.float32)
        if bias is not None:
            logits += bias
        logits = jnp.where(mask, logits, NEG_INF)
        weights = jax.nn.softmax(logits, axis=-1).astype(dtype)
        weights = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(weights, deterministic)
        out = jnp.einsum("bhqk,bkhc->bqhc", weights, value)
        out = out.reshape(*out.shape[:2], inner)
        return Dense(cfg.d_model, inner**-0.5, ("joined_kv", "embed"), dtype, name="out")(out)


class MlpBlock(nn.Module):
    """act(x wi) wo, or act(x wi_0) * (x wi_1) wo when gated."""

    config: T5Config

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t d"]:
        cfg = self.config
        dtype = jnp.dtype(cfg.dtype)
        act = ACTIVATIONS[cfg.activation]
        into = functools.partial(Dense, cfg.d_ff, cfg.d_model**-0.5, ("embed", "mlp"), dtype)
        if cfg.gated:
            hidden = act(into(name="wi_0")(x)) * into(name="wi_1")(x)
        else:
            hidden = act(into(name="wi")(x))
        hidden = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(hidden, deterministic)
        hidden = constrain(hidden, MLP_AXES)
        return Dense(cfg.d_model, cfg.d_ff**-0.5, ("mlp", "embed"), dtype, name="wo")(hidden)


class Layer(nn.Module):
    """One encoder layer (``cross=False``) or decoder layer (``cross=True``)."""

    config: T5Config
    cross: bool

    @nn.compact
    def __call__(self, x, mask, bias, encoded, encoded_mask, deterministic):
        cfg = self.config
        norm = functools.partial(RMSNorm, cfg.layer_norm_epsilon)
        dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
        self_name = "self_attention" if self.cross else "attention"

        if cfg.relative_bias_in_every_layer:
            own = RelativePositionBias(cfg, not self.cross, name="relpos_bias")
            bias = own(x.shape[1], x.shape[1])
        h = norm(name=f"pre_{self_name}_layer_norm")(x)
        x = x + dropout(Attention(cfg, name=self_name)(h, h, mask, bias, deterministic))
        if self.cross:
            h = norm(name="pre_cross_attention_layer_norm")(x)
            cross = Attention(cfg, name="encoder_decoder_attention")
            x = x + dropout(cross(h, encoded, encoded_mask, None, deterministic))
        h = norm(name="pre_mlp_layer_norm")(x)
        x = x + dropout(MlpBlock(cfg, name="mlp")(h, deterministic))
        return constrain(x, HIDDEN_AXES)


class Stack(nn.Module):
    """Embedding, layers, final norm; with ``cross`` the decoder, whose output is logits.

    ``encoded`` is what the decoder attends to. The encoder of a draft that starts from its target's
    encoding adds a projection of that to the embedded tokens.
    """

    config: T5Config
    num_layers: int
    cross: bool
    embedder: nn.Module

    @nn.compact
    def __call__(self, tokens, mask, encoded=None, encoded_mask=None, deterministic=True):
        cfg = self.config
        dropout = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)
        length = tokens.shape[1]
        bias = None
        if self.num_layers and not cfg.relative_bias_in_every_layer:
            bias = RelativePositionBias(cfg, not self.cross, name="relpos_bias")(length, length)
        x = self.embedder(tokens)
        if not self.cross and cfg.encoding_width is not None:
            axes, dtype = ("encoding", "embed"), jnp.dtype(cfg.dtype)
            stddev, name = cfg.encoding_width**-0.5, "input_projection"
            x += Dense(cfg.d_model, stddev, axes, dtype, name=name)(cast(Array, encoded))
        x = constrain(dropout(x), HIDDEN_AXES)
        for i in range(self.num_layers):
            layer = Layer(cfg, self.cross, name=f"layers_{i}")
            x = layer(x, mask, bias, encoded, encoded_mask, deterministic)
        norm_name = "decoder_norm" if self.cross else "encoder_norm"
        x = dropout(RMSNorm(cfg.layer_norm_epsilon, name=norm_name)(x))
        if not self.cross:
            return x
        if cfg.tied_logits:
            return self.embedder.attend(x)
        axes, float32 = ("embed", "vocab"), jnp.dtype("float32")
        return Dense(cfg.vocab_size, cfg.d_model**-0.5, axes, float32, name="logits_dense")(x)


class Embed(nn.Module):
    """Token embedding [V, D]; ``attend`` gives v1.0's tied, scaled logits."""

    config: T5Config

    def setup(self):
        cfg = self.config
        # v1.0 ties the logits and scales them by D**-0.5, hence unit variance here.
        self.embedding = _param(
            self, "embedding", nn.initializers.normal(1.0),
            (cfg.vocab_size, cfg.d_model), ("vocab", "embed"),
        )  # fmt: skip

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.embedding[tokens].astype(jnp.dtype(self.config.dtype))

    def attend(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        x = x * self.config.d_model**-0.5
        return product(x.astype(jnp.float32), self.embedding, "oi")


class Transformer(nn.Module):
    """T5. ``__call__`` is teacher-forced; ``encode`` and ``decode`` are its two halves."""

    config: T5Config

    def setup(self):
        cfg = self.config
        self.token_embedder = Embed(cfg)
        self.encoder = Stack(cfg, cfg.num_encoder_layers, False, self.token_embedder)
        self.decoder = Stack(cfg, cfg.num_decoder_layers, True, self.token_embedder)

    def encode(
        self, inputs: Int[Array, "b s"], encoding: Float[Array, "b s w"] | None = None, *,
        deterministic: bool = True,
    ) -> Float[Array, "b s d"]:  # fmt: skip
        """Encoder output; positions holding ``pad_id`` are never attended to.

        Args:
          encoding: the target's encoder output, for a draft that starts from it.

        Raises:
          ValueError: it is missing or of another width than ``config.encoding_width``.
        """
        check_encoding(self.config, encoding)
        mask = (inputs != self.config.pad_id)[:, None, None, :]
        return self.encoder(inputs, mask, encoding, deterministic=deterministic)

    def decode(
        self, encoded: Float[Array, "b s d"], inputs: Int[Array, "b s"],
        decoder_inputs: Int[Array, "b t"], *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits for every position of ``decoder_inputs`` under a causal mask."""
        length = decoder_inputs.shape[1]
        causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
        cross_mask = (inputs != self.config.pad_id)[:, None, None, :]
        return self.decoder(decoder_inputs, causal, encoded, cross_mask, deterministic)

    def __call__(
        self, inputs: Int[Array, "b s"], decoder_inputs: Int[Array, "b t"],
        encoding: Float[Array, "b s w"] | None = None, *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        encoded = self.encode(inputs, encoding, deterministic=deterministic)
        return self.decode(encoded, inputs, decoder_inputs, deterministic=deterministic)


def init_params(config: T5Config, key: jax.Array) -> dict:
    """Random parameters in T5X's tree, float32, unboxed (plain arrays)."""
    tokens = jnp.ones((1, 4), jnp.int32)
    width = config.encoding_width
    encoding = None if width is None else jnp.ones((1, 4, width))
    return nn.unbox(Transformer(config).init(key, tokens, tokens, encoding)["params"])


def check_encoding(config: T5Config, encoding: Float[Array, "b s w"] | None) -> None:
    """Checks the encoding that an encoder starts from.

    Raises:
      ValueError: a target's encoding is missing or of another width than ``encoding_width``.
    """
    width = None if encoding is None else encoding.shape[-1]
    if width != config.encoding_width:
        raise ValueError(
            "This network's encoder starts from a target's encoding of width "
            f"{config.encoding_width}, but was given {width} (None: from tokens)."
        )
