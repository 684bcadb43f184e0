"""The parts of a layer in Flax linen: products, norms, attention, feed-forward, embeddings.

Shapes: B batch, T tokens, M entries that they attend to, D d_model, H heads, G heads of keys and
values, R = H / G, K head_dim, F d_ff, V vocab.
"""

from __future__ import annotations

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
    capped,
    relative_position_buckets,
    turned,
)
from specdec.models.transformer.config import (
    Absolute,
    Norm,
    Relative,
    Rotary,
    Stack,
    TransformerConfig,
)

STDDEV = 0.02  # Of initial kernels and tables of GPT-2 and BART.
_ones, _zeros = nn.initializers.ones, nn.initializers.zeros


def param(
    module: nn.Module, name: str, init: Callable[..., Array], shape: tuple[int, ...],
    axes: tuple[str, ...],
) -> Array:  # fmt: skip
    """A float32 parameter with logical axes."""
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
        kernel = param(self, "kernel", init, shape, self.axes)
        out = product(x.astype(self.dtype), kernel.reshape(len(kernel), -1))
        out = out.reshape(*x.shape[:-1], *self.features)
        if not self.bias:
            return out
        return out + param(self, "bias", _zeros, self.features, self.axes[1:]).astype(self.dtype)


class Normed(nn.Module):
    """x, normalised in float32; see :class:`specdec.models.transformer.config.Norm`."""

    norm: Norm
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        kind, shape, axes = self.norm.kind, (x.shape[-1],), (self.axis,)
        scale = param(self, "scale", _zeros if kind == "shifted_rms" else _ones, shape, axes)
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
        return normed + param(self, "bias", _zeros, shape, axes).astype(x.dtype)


class RelativeBias(nn.Module):
    """Bias [1, H, T, T] of attention's scores; the table is [H, num_buckets] as in T5X."""

    stack: Stack
    bidirectional: bool

    @nn.compact
    def __call__(self, length: int) -> Float[Array, "1 h t t"]:
        positions = cast(Relative, self.stack.positions)
        table = param(
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
            joined = Dense((3, stack.d_model), STDDEV, axes, dtype, True, name="qkv")(x)
            query, key, value = (heads(joined[:, :, i]) for i in range(3))
        else:

            def into(name, features, read):
                stddev = stddev_of(cfg, stack, name, read)
                axes = ("embed", "joined_kv")
                return Dense((features,), stddev, axes, dtype, stack.biased(name), name=name)

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
        weights = dropout_of(cfg, deterministic)(weights)
        out = jnp.einsum("bgqm,bmgk->bqgk", weights, value)
        out = out.reshape(batch, length, -1, groups, size).swapaxes(2, 3)
        out = out.reshape(batch, length, stack.inner)
        stddev, axes = stddev_of(cfg, stack, "out", stack.inner), ("joined_kv", "embed")
        return Dense((stack.d_model,), stddev, axes, dtype, stack.biased("out"), name="out")(out)


class MlpBlock(nn.Module):
    """act(x wi) wo, or act(x wi_0) * (x wi_1) wo when gated."""

    config: TransformerConfig
    stack: Stack

    @nn.compact
    def __call__(self, x: Float[Array, "b t d"], deterministic: bool) -> Float[Array, "b t d"]:
        cfg, stack, biased = self.config, self.stack, self.stack.biased("mlp")
        act, dtype = ACTIVATIONS[stack.activation], jnp.dtype(cfg.dtype)

        def into(name: str) -> Array:
            stddev, axes = stddev_of(cfg, stack, name, stack.d_model), ("embed", "mlp")
            return Dense((stack.d_ff,), stddev, axes, dtype, biased, name=name)(x)

        hidden = act(into("wi_0")) * into("wi_1") if stack.gated else act(into("wi"))
        hidden = constrain(dropout_of(cfg, deterministic)(hidden), MLP_AXES)
        stddev, axes = stddev_of(cfg, stack, "wo", stack.d_ff), ("mlp", "embed")
        return Dense((stack.d_model,), stddev, axes, dtype, biased, name="wo")(hidden)


def stddev_of(config: TransformerConfig, stack: Stack, name: str, read: int) -> float:
    """Scale of an initial kernel that reads so many features."""
    if isinstance(stack.positions, Absolute):
        # Kernels that add to GPT-2's residual stream are smaller (Radford et al., 2.3).
        adds = config.encoder is None and name in ("out", "wo")
        return STDDEV * (2 * stack.num_layers) ** -0.5 if adds else STDDEV
    # Where scores are not divided by sqrt(K), the query is, as in Mesh TensorFlow.
    divided = name == "query" and stack.query_scale == 1
    return (read * stack.head_dim if divided else read) ** -0.5


def dropout_of(config: TransformerConfig, deterministic: bool) -> nn.Dropout:
    """Dropout along a row alike, as T5X's."""
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
        place, dropout = stack.norm.place, dropout_of(cfg, deterministic)

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
        self.embedding = param(self, "embedding", init, shape, ("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.embedding[tokens].astype(self.dtype)

    def attend(self, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return product(x.astype(jnp.float32), self.embedding, "oi")


def embedder_of(config: TransformerConfig, size: int, width: int, name: str | None = None) -> Embed:
    """An embedding, whose scale is that of its family."""
    stddev = STDDEV
    if isinstance(config.decoder.positions, Relative):
        stddev = 1.0  # v1.0 ties the logits and scales them by D**-0.5.
    elif isinstance(config.decoder.positions, Rotary) and config.scaled_embedding:
        stddev = width**-0.5
    return Embed(size, width, stddev, jnp.dtype(config.dtype), name=name)
