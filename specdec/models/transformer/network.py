"""The network in Flax linen: training and the teacher-forced reference.

``tree.py`` says how its parameters are called. A layer is norm, part and residual, for each of its
parts; softmax and logits are float32. Dropout is in T5X's places: of embedded tokens, attention
weights, hidden units, parts and final states, all along a row alike.

Shapes: B batch, S input length, T output length, D d_model, H heads, G heads of keys and values,
R = H / G, K head_dim, F d_ff, V vocab.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning
from jaxtyping import Array, Bool, Float, Int

from specdec.models.attention import NEG_INF
from specdec.models.partitioning import HEADS_AXES, HIDDEN_AXES, MLP_AXES, constrain
from specdec.models.products.differentiable import product
from specdec.models.transformer import tree
from specdec.models.transformer.arithmetic import (
    ACTIVATIONS,
    angles,
    capped,
    check_encoding,
    embedding_scale,
    relative_position_buckets,
    sinusoids,
    turned,
    within,
)
from specdec.models.transformer.config import (
    Absolute,
    Norm,
    Relative,
    Rotary,
    Stack,
    TransformerConfig,
)

_STDDEV = 0.02  # Of initial kernels and tables of GPT-2 and BART.
_ones, _zeros = nn.initializers.ones, nn.initializers.zeros


def _param(
    module: nn.Module, name: str, init: Callable[..., Array], shape: tuple[int, ...],
    axes: tuple[str, ...],
) -> Array:  # fmt: skip
    boxed = with_logical_partitioning(init, axes)
    # Inside a module Flax hands the parameter out unboxed.
    return cast(Array, module.param(name, boxed, shape, jnp.float32))


class Dense(nn.Module):
    """x [..., in] @ kernel [in, *features], plus a bias where there is one."""

    features: tuple[int, ...]
    stddev: float
    axes: tuple[str, ...]
    dtype: jnp.dtype
    bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "b t i"]) -> Float[Array, "b t *o"]:
        init, shape = nn.initializers.normal(self.stddev), (x.shape[-1], *self.features)
        kernel = _param(self, "kernel", init, shape, self.axes)
        out = product(x.astype(self.dtype), kernel.reshape(len(kernel), -1))
        out = out.reshape(*x.shape[:-1], *self.features)
        if not self.bias:
            return out
        return out + _param(self, "bias", _zeros, self.features, self.axes[1:]).astype(self.dtype)


class Normed(nn.Module):
    """x, normalised in float32; see :class:`specdec.models.transformer.config.Norm`."""

    norm: Norm
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        kind, shape, axes = self.norm.kind, (x.shape[-1],), (self.axis,)
        scale = _param(self, "scale", _zeros if kind == "shifted_rms" else _ones, shape, axes)
        x32 = x.astype(jnp.float32)
        if kind == "layer":
            x32 -= jnp.mean(x32, axis=-1, keepdims=True)
        mean = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
        x32 *= jax.lax.rsqrt(mean + self.norm.epsilon)
        if kind == "shifted_rms":
            return (x32 * (scale + 1)).astype(x.dtype)
        normed = x32.astype(x.dtype) * scale.astype(x.dtype)
        if kind != "layer":
            return normed
        return normed + _param(self, "bias", _zeros, shape, axes).astype(x.dtype)


class RelativeBias(nn.Module):
    """Bias [1, H, T, T] of attention's scores; the table is [H, num_buckets] as in T5X."""

    stack: Stack
    bidirectional: bool

    @nn.compact
    def __call__(self, length: int) -> Float[Array, "1 h t t"]:
        positions = cast(Relative, self.stack.positions)
        table = _param(
            self, "rel_embedding", nn.initializers.normal(0.1),
            (self.stack.num_heads, positions.buckets), ("heads", "relpos_buckets"),
        )  # fmt: skip
        relative = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
        buckets = relative_position_buckets(relative, positions, bidirectional=self.bidirectional)
        return table[:, buckets][None]


class Seen(NamedTuple):
    """States that a token attends to, which of them, and how far their keys turn."""

    states: Float[Array, "b m d"]
    mask: Bool[Array, "#b #t m"]
    angles: Float[Array, "b m k/2"] | None = None  # None where keys do not turn.


class Attention(nn.Module):
    """Attention of several heads, of which some may share a key and a value."""

    config: TransformerConfig
    stack: Stack
    normed: bool  # Queries and keys have norms.

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], bias: Float[Array, "1 h t t"] | None,
        by: Float[Array, "b t k/2"] | None, deterministic: bool, *seen: Seen,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        cfg, stack, dtype = self.config, self.stack, jnp.dtype(self.config.dtype)
        groups, size = stack.kv_heads, stack.head_dim

        def heads(x, norm=None, by=None):
            x = x.reshape(*x.shape[:2], -1, size)
            if norm is not None and self.normed:
                x = norm(x)
            return constrain(x if by is None else turned(x, by), HEADS_AXES)

        if tree.joins_qkv(cfg):
            axes = ("embed", "stack", "joined_kv")
            joined = Dense((3, stack.d_model), _STDDEV, axes, dtype, True, name="qkv")(x)
            query, key, value = (heads(joined[:, :, i]) for i in range(3))
        else:
            biased = stack.biases != "none"

            def into(name, features, read):
                stddev = _stddev(cfg, stack, name, read)
                axes = ("embed", "joined_kv")
                return Dense((features,), stddev, axes, dtype, biased, name=name)

            norms = [
                Normed(stack.norm, "kv", name=f"{name}_norm") if self.normed else None
                for name in ("query", "key")
            ]
            read = seen[0].states.shape[-1]
            query = heads(into("query", stack.inner, x.shape[-1])(x), norms[0], by)
            keys = into("key", groups * size, read)
            values = into("value", groups * size, read)
            key, value = (
                jnp.concatenate([of(each) for each in seen], axis=1)
                for of in (
                    lambda each: heads(keys(each.states), norms[1], each.angles),
                    lambda each: heads(values(each.states)),
                )
            )
        if stack.query_scale != 1:
            query = query * stack.query_scale
        # Queries that share a key are as tokens beside each other.
        batch, length = x.shape[:2]
        query = query.reshape(batch, length, groups, -1, size).swapaxes(2, 3)
        query = query.reshape(batch, -1, groups, size)
        scores = jnp.einsum("bqgk,bmgk->bgqm", query, key).astype(jnp.float32)
        scores = capped(scores, stack.attention_softcap)
        scores = scores.reshape(batch, groups, length, -1, scores.shape[3])
        if bias is not None:
            scores += bias[:, :, :, None]
        masks = (jnp.broadcast_to(a.mask, (*x.shape[:2], a.mask.shape[2])) for a in seen)
        mask = jnp.concatenate([*masks], axis=-1)[:, None, :, None]
        weights = jax.nn.softmax(jnp.where(mask, scores, NEG_INF), axis=-1).astype(dtype)
        weights = weights.reshape(batch, groups, -1, weights.shape[4])
        weights = _dropout(cfg, deterministic)(weights)
        out = jnp.einsum("bgqm,bmgk->bqgk", weights, value)
        out = out.reshape(batch, length, -1, groups, size).swapaxes(2, 3)
        out = out.reshape(batch, length, stack.inner)
        stddev, axes = _stddev(cfg, stack, "out", stack.inner), ("joined_kv", "embed")
        return Dense((stack.d_model,), stddev, axes, dtype, stack.biases == "all", name="out")(out)


class MlpBlock(nn.Module):
    """act(x wi) wo, or act(x wi_0) * (x wi_1) wo when gated."""

    config: TransformerConfig
    stack: Stack

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t d"]:
        cfg, stack, biased = self.config, self.stack, self.stack.biases == "all"
        act, dtype = ACTIVATIONS[stack.activation], jnp.dtype(cfg.dtype)

        def dense(name, read, features, axes):
            return Dense(
                (features,), _stddev(cfg, stack, name, read), axes, dtype, biased, name=name
            )

        into = functools.partial(
            dense, read=stack.d_model, features=stack.d_ff, axes=("embed", "mlp")
        )
        hidden = act(into("wi_0")(x)) * into("wi_1")(x) if stack.gated else act(into("wi")(x))
        hidden = constrain(_dropout(cfg, deterministic)(hidden), MLP_AXES)
        return dense("wo", stack.d_ff, stack.d_model, ("mlp", "embed"))(hidden)


def _stddev(config: TransformerConfig, stack: Stack, name: str, read: int) -> float:
    """Scale of an initial kernel that reads so many features."""
    if isinstance(stack.positions, Absolute):
        # Kernels that add to GPT-2's residual stream are smaller (Radford et al., 2.3).
        adds = config.encoder is None and name in ("out", "wo")
        return _STDDEV * (2 * stack.num_layers) ** -0.5 if adds else _STDDEV
    # Where scores are not divided by sqrt(K), the query is, as in Mesh TensorFlow.
    divided = name == "query" and stack.query_scale == 1
    return (read * stack.head_dim if divided else read) ** -0.5


def _dropout(config: TransformerConfig, deterministic: bool) -> nn.Dropout:
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,), deterministic=deterministic)


class Layer(nn.Module):
    """Self-attention, a decoder's cross-attention where it is not merged, and feed-forward."""

    config: TransformerConfig
    stack: Stack
    kind: str  # "encoder" or "decoder"

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], mask: Bool[Array, "#b t t"],
        bias: Float[Array, "1 h t t"] | None, by: Float[Array, "b t k/2"] | None,
        encoded: Seen | None, deterministic: bool,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        cfg, stack, own_name = self.config, self.stack, tree.self_attention(self.stack, self.kind)
        place, dropout = stack.norm.place, _dropout(cfg, deterministic)

        def added(name: str, x: Array, part: Callable[[Array], Array]) -> Array:
            def norm(when: str) -> Normed:
                return Normed(stack.norm, name=tree.norm(cfg, name, when))

            if place == "after":
                return norm("pre")(x + dropout(part(x)))
            h = part(norm("pre")(x))
            return x + dropout(norm("post")(h) if place == "both" else h)

        if isinstance(stack.positions, Relative) and stack.positions.in_every_layer:
            bias = RelativeBias(stack, self.kind == "encoder", name="relpos_bias")(x.shape[1])
        own = Attention(cfg, stack, stack.query_key_norms, name=own_name)
        merged = cfg.merged_attention
        more = (encoded,) if merged and encoded is not None else ()
        x = added(own_name, x, lambda h: own(h, bias, by, deterministic, Seen(h, mask, by), *more))
        if encoded is not None and not merged:
            cross = Attention(cfg, stack, False, name="encoder_decoder_attention")
            x = added("cross_attention", x, lambda h: cross(h, None, None, deterministic, encoded))
        mlp = MlpBlock(cfg, stack, name="mlp")
        return constrain(added("mlp", x, lambda h: mlp(h, deterministic)), HIDDEN_AXES)


class Embed(nn.Module):
    """A table [N, D]; ``attend`` gives tied logits."""

    size: int
    width: int
    stddev: float
    dtype: jnp.dtype

    def setup(self):
        init, shape = nn.initializers.normal(self.stddev), (self.size, self.width)
        self.embedding = _param(self, "embedding", init, shape, ("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.embedding[tokens].astype(self.dtype)

    def attend(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return product(x.astype(jnp.float32), self.embedding, "oi")


class LogitsDense(nn.Module):
    """Logits that are not the embedding's alone."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], tied: Float[Array, "b t v"] | None
    ) -> Float[Array, "b t v"]:
        cfg, shape = self.config, (x.shape[-1], self.config.vocab_size)
        if tied is None:
            init = nn.initializers.normal(_stddev(cfg, cfg.decoder, "logits", shape[0]))
            kernel = _param(self, "kernel", init, shape, ("embed", "vocab"))
            tied = product(x.astype(jnp.float32), kernel)
        if not cfg.logits.bias:
            return tied
        return tied + _param(self, "bias", _zeros, shape[1:], ("vocab",))


class Layers(nn.Module):
    """A stack: embedding, layers and norms; a decoder's output is logits."""

    config: TransformerConfig
    kind: str  # "encoder" or "decoder"
    embedder: Embed | None  # None for one of its own.
    positions: Embed | None
    head: Embed  # Of tied logits.

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "b t"], mask: Bool[Array, "#b t t"], encoded: Seen | None = None,
        encoding: Float[Array, "b t w"] | None = None, deterministic: bool = True,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        cfg, stack, length = self.config, self.config.stacks[self.kind], tokens.shape[1]
        dtype, dropout = jnp.dtype(cfg.dtype), _dropout(cfg, deterministic)
        norm, encodes = functools.partial(Normed, stack.norm), self.kind == "encoder"
        embedder = self.embedder or _embedder(
            cfg, cast(int, cfg.encoder_vocab_size), stack.d_model, name="token_embedder"
        )
        x = embedder(tokens)
        if cfg.scaled_embedding:
            x *= embedding_scale(stack.d_model, dtype)
        if isinstance(stack.positions, Absolute):
            if self.positions is not None:
                x += self.positions(stack.positions.offset + jnp.arange(length)[None])
            else:
                x += sinusoids(stack.positions, stack.d_model)[:length].astype(x.dtype)
        if encodes and cfg.encoding_width is not None:
            stddev, axes = cfg.encoding_width**-0.5, ("encoding", "embed")
            project = Dense((stack.d_model,), stddev, axes, dtype, name="input_projection")
            x += project(cast(Array, encoding))
        x = constrain(x, HIDDEN_AXES)
        if stack.norm.embedding:
            x = norm(name="embedding_norm")(x)
        x, bias, at = dropout(x), None, jnp.arange(length)[None]
        shared = isinstance(stack.positions, Relative) and not stack.positions.in_every_layer
        if shared and stack.num_layers:
            bias = RelativeBias(stack, encodes, name="relpos_bias")(length)
        for i in range(stack.num_layers):
            seen, by, slides = mask, None, stack.slides(i)
            if isinstance(stack.positions, Rotary):
                by = angles(stack.rope_of(slides), stack.head_dim, at)
            if slides and stack.window is not None:
                seen = mask & within(stack.window, at, at)
            layer = Layer(cfg, stack, self.kind, name=f"layers_{i}")
            x = layer(x, seen, bias, by, encoded, deterministic)
        if stack.norm.place != "after":
            x = dropout(norm(name=f"{self.kind}_norm")(x))
        if encodes:
            return x
        tied = None
        if cfg.logits.tied:
            scaled = x * cfg.d_model**-0.5 if cfg.logits.scaled else x
            tied = self.head.attend(scaled)
        if tied is None or cfg.logits.bias:
            tied = LogitsDense(cfg, name="logits_dense")(x, tied)
        return capped(tied, cfg.logits.softcap)


def _embedder(config: TransformerConfig, size: int, width: int, name: str | None = None) -> Embed:
    """An embedding, whose scale is that of its family."""
    stddev = _STDDEV
    if isinstance(config.decoder.positions, Relative):
        stddev = 1.0  # v1.0 ties the logits and scales them by D**-0.5.
    elif isinstance(config.decoder.positions, Rotary) and config.scaled_embedding:
        stddev = width**-0.5
    return Embed(size, width, stddev, jnp.dtype(config.dtype), name=name)


class Transformer(nn.Module):
    """``__call__`` is teacher-forced; ``encode`` and ``decode`` are its two halves."""

    config: TransformerConfig

    def setup(self):
        cfg = self.config
        self.token_embedder = _embedder(cfg, cfg.vocab_size, cfg.d_model)
        tables: dict[str, Embed | None] = dict.fromkeys(cfg.stacks)
        for kind, stack in cfg.stacks.items():
            if (name := tree.position_embedder(cfg, kind)) is not None:
                rows = cast(Absolute, stack.positions)
                # GPT-2's are half as wide.
                stddev = _STDDEV / 2 if cfg.encoder is None else _STDDEV
                size, dtype = rows.offset + rows.count, jnp.dtype(cfg.dtype)
                setattr(self, name, Embed(size, stack.d_model, stddev, dtype))
                tables[kind] = getattr(self, name)
        self.decoder = Layers(
            cfg, "decoder", self.token_embedder, tables["decoder"], self.token_embedder
        )
        if cfg.encoder is not None:
            own, embedder = tree.encoder_embedder(cfg), self.token_embedder
            if own == "encoder_token_embedder":
                rows = cast(int, cfg.encoder_vocab_size)
                embedder = self.encoder_token_embedder = _embedder(cfg, rows, cfg.encoder.d_model)
            elif own is not None:
                embedder = None
            self.encoder = Layers(cfg, "encoder", embedder, tables["encoder"], self.token_embedder)

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
        check_encoding(self.config.encoding_width, encoding)
        mask = (inputs != self.config.pad_id)[:, None]
        mask = jnp.broadcast_to(mask, (*inputs.shape, inputs.shape[1]))
        return self.encoder(inputs, mask, None, encoding, deterministic)

    def decode(
        self, encoded: Float[Array, "b s d"] | None, inputs: Int[Array, "b s"] | None,
        decoder_inputs: Int[Array, "b t"], *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits for every position of ``decoder_inputs`` under a causal mask.

        ``encoded`` and ``inputs`` are None without an encoder.
        """
        length, seen = decoder_inputs.shape[1], None
        if encoded is not None:
            seen = Seen(encoded, (cast(Array, inputs) != self.config.pad_id)[:, None])
        causal = jnp.tril(jnp.ones((length, length), bool))[None]
        return self.decoder(decoder_inputs, causal, seen, None, deterministic)

    def __call__(
        self, inputs: Int[Array, "b s"], decoder_inputs: Int[Array, "b t"] | None = None,
        encoding: Float[Array, "b s w"] | None = None, *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits of the token after each one.

        Args:
          inputs: an encoder's, of which those that are ``pad_id`` are not seen; or a decoder's, if
            there is no encoder.
          decoder_inputs: of an encoder-decoder.
          encoding: see :meth:`encode`.
        """
        if self.config.encoder is None:
            return self.decode(None, None, inputs, deterministic=deterministic)
        encoded = self.encode(inputs, encoding, deterministic=deterministic)
        targets = cast(Array, decoder_inputs)
        return self.decode(encoded, inputs, targets, deterministic=deterministic)


def init_params(config: TransformerConfig, key: jax.Array) -> dict:
    """Random parameters, float32, unboxed (plain arrays); zeros for BART's embedded padding."""
    tokens, width = jnp.zeros((1, 1), jnp.int32), config.encoding_width
    encoding = None if width is None else jnp.ones((1, 1, width))
    params = nn.unbox(Transformer(config).init(key, tokens, tokens, encoding)["params"])
    if config.encoder is not None and isinstance(config.decoder.positions, Absolute):
        for name in {"token_embedder", "encoder_token_embedder"} & params.keys():
            params[name]["embedding"] = params[name]["embedding"].at[config.pad_id].set(0.0)
    return params
