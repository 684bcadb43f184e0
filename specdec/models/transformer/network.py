"""The network in Flax linen: training and the teacher-forced reference.

``tree.py`` says how its parameters are called. A layer is norm, part and residual, for each of its
parts; softmax and logits are float32. Dropout is in T5X's places: of embedded tokens, attention
weights, hidden units, parts and final states, all along a row alike.

Shapes: B batch, S input length, T output length, D d_model, H heads, K head_dim, W width of an
encoding, V vocab.
"""

from __future__ import annotations

import functools
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from specdec.models.partitioning import HIDDEN_AXES, constrain
from specdec.models.products.differentiable import product
from specdec.models.transformer import tree
from specdec.models.transformer.arithmetic import (
    ACTIVATIONS,
    angles,
    capped,
    check_encoding,
    embedding_scale,
    sinusoids,
    windows,
    within,
)
from specdec.models.transformer.blocks import (
    STDDEV,
    Dense,
    Embed,
    Layer,
    Normed,
    RelativeBias,
    Seen,
    dropout_of,
    embedder_of,
    param,
    stddev_of,
)
from specdec.models.transformer.config import (
    Absolute,
    Relative,
    Rotary,
    TransformerConfig,
)


class LogitsDense(nn.Module):
    """Logits that are not the embedding's alone."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d"], tied: Float[Array, "b t v"] | None
    ) -> Float[Array, "b t v"]:
        cfg, shape = self.config, (x.shape[-1], self.config.vocab_size)
        if tied is None:
            init = nn.initializers.normal(stddev_of(cfg, cfg.decoder, "logits", shape[0]))
            kernel = param(self, "kernel", init, shape, ("embed", "vocab"))
            tied = product(x.astype(jnp.float32), kernel)
        if not cfg.logits.bias:
            return tied
        return tied + param(self, "bias", nn.initializers.zeros, shape[1:], ("vocab",))


class Layers(nn.Module):
    """A stack: embedding, layers and norms; a decoder's output is logits."""

    config: TransformerConfig
    kind: str  # "encoder" or "decoder"
    embedder: Embed | None  # None for one of its own.
    positions: Embed | None
    head: Embed  # Of tied logits.

    @nn.compact
    def __call__(
        self, tokens: Shaped[Array, "b t ..."], mask: Bool[Array, "#b s s"],
        encoded: Seen | None = None, encoding: Float[Array, "b t w"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        cfg, stack, length = self.config, self.config.stacks[self.kind], tokens.shape[1]
        dtype, dropout = jnp.dtype(cfg.dtype), dropout_of(cfg, deterministic)
        norm, encodes = functools.partial(Normed, stack.norm), self.kind == "encoder"
        if encodes and cfg.features is not None:
            x = self._convolved(tokens.astype(dtype))
            length = x.shape[1]
        else:
            embedder = self.embedder or embedder_of(
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

    def _convolved(self, features: Float[Array, "b 2*s m"]) -> Float[Array, "b s d"]:
        """States of every second frame, behind two convolutions."""
        width, act = self.config.stacks[self.kind].d_model, ACTIVATIONS["gelu_exact"]
        x, axes = features, ("encoding", "embed")
        for name, stride in (("conv1", 1), ("conv2", 2)):
            x = windows(x, stride)
            x = act(Dense((width,), x.shape[-1] ** -0.5, axes, x.dtype, True, name=name)(x))
        return x


class Transformer(nn.Module):
    """``__call__`` is teacher-forced; ``encode`` and ``decode`` are its two halves."""

    config: TransformerConfig

    def setup(self):
        cfg = self.config
        self.token_embedder = embedder_of(cfg, cfg.vocab_size, cfg.d_model)
        tables: dict[str, Embed | None] = dict.fromkeys(cfg.stacks)
        for kind, stack in cfg.stacks.items():
            if (name := tree.position_embedder(cfg, kind)) is not None:
                rows = cast(Absolute, stack.positions)
                # GPT-2's are half as wide.
                stddev = STDDEV / 2 if cfg.encoder is None else STDDEV
                size, dtype = rows.offset + rows.count, jnp.dtype(cfg.dtype)
                setattr(self, name, Embed(size, stack.d_model, stddev, dtype))
                tables[kind] = getattr(self, name)
        self.decoder = Layers(
            cfg, "decoder", self.token_embedder, tables["decoder"], self.token_embedder
        )
        if cfg.encoder is not None:
            own, embedder = tree.encoder_embedder(cfg), self.token_embedder
            if cfg.features is not None:
                embedder = None
            if own == "encoder_token_embedder":
                rows = cast(int, cfg.encoder_vocab_size)
                embedder = self.encoder_token_embedder = embedder_of(cfg, rows, cfg.encoder.d_model)
            elif own is not None:
                embedder = None
            self.encoder = Layers(cfg, "encoder", embedder, tables["encoder"], self.token_embedder)

    def encode(
        self, inputs: Shaped[Array, "b s ..."], encoding: Float[Array, "b s w"] | None = None, *,
        deterministic: bool = True,
    ) -> Float[Array, "b s d"]:  # fmt: skip
        """Encoder output of tokens, of which ``pad_id`` is never attended to, or of features.

        Args:
          encoding: the target's encoder output, for a draft that starts from it.

        Raises:
          ValueError: it is missing or of another width than ``config.encoding_width``.
        """
        check_encoding(self.config.encoding_width, encoding)
        mask = self._read(inputs)
        mask = jnp.broadcast_to(mask[:, None], (*mask.shape, mask.shape[1]))
        return self.encoder(inputs, mask, None, encoding, deterministic)

    def _read(self, inputs: Shaped[Array, "b t ..."]) -> Bool[Array, "b s"]:
        """Mask of the positions that are attended to: tokens that are no pad, all of sound."""
        if self.config.features is None:
            return inputs != self.config.pad_id
        return jnp.ones((len(inputs), inputs.shape[1] // 2), bool)

    def decode(
        self, encoded: Float[Array, "b s d"] | None, inputs: Shaped[Array, "b s ..."] | None,
        decoder_inputs: Int[Array, "b t"], *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits for every position of ``decoder_inputs`` under a causal mask.

        ``encoded`` and ``inputs`` are None without an encoder.
        """
        length, seen = decoder_inputs.shape[1], None
        if encoded is not None:
            seen = Seen(encoded, self._read(cast(Array, inputs))[:, None])
        causal = jnp.tril(jnp.ones((length, length), bool))[None]
        return self.decoder(decoder_inputs, causal, seen, None, deterministic)

    def __call__(
        self, inputs: Shaped[Array, "b s ..."], decoder_inputs: Int[Array, "b t"] | None = None,
        encoding: Float[Array, "b s w"] | None = None, *, deterministic: bool = True,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """Float32 logits of the token after each one.

        Args:
          inputs: an encoder's, of which those that are ``pad_id`` are not seen, or features of
            sound [B, 2S, M]; or a decoder's, if there is no encoder.
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
    inputs = tokens if config.features is None else jnp.zeros((1, 2, config.features))
    params = nn.unbox(Transformer(config).init(key, inputs, tokens, encoding)["params"])
    if config.encoder is not None and isinstance(config.decoder.positions, Absolute):
        for name in {"token_embedder", "encoder_token_embedder"} & params.keys():
            params[name]["embedding"] = params[name]["embedding"].at[config.pad_id].set(0.0)
    return params
