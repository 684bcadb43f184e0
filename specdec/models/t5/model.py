"""T5 as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` fused at load. On CPU each
kernel is stored out-features first, which ``few_tokens.py`` reads once for all tokens. On a mesh
attention is cut by heads and the feed-forward by its hidden width: each device computes its share
of a product, and what the next part reads is their sum.

Shapes: B batch, S input length, T block length, M cache length, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.reductions import softmax_parts
from specdec.core.standardize import spread
from specdec.models import cache as kv
from specdec.models.partitioning import Partitioning, constrain
from specdec.models.products import few_tokens, plain
from specdec.models.products.quantized import Int8Kernel, Kernel, int8_rows, num_bytes
from specdec.models.t5 import packing
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import (
    ACTIVATIONS,
    HIDDEN_AXES,
    MLP_AXES,
    NEG_INF,
    check_encoding,
    relative_position_buckets,
)
from specdec.models.t5.packing import PackedLayer, PackedT5, Store
from specdec.pytrees import pytree
from specdec.topology import CHAIN, Order
from specdec.types import AnyArray, Distribution, Params, Prompt, Start

Layout = Literal["out_in", "in_out"]


def best_layout() -> Layout:
    """The kernel layout for the default backend."""
    return "out_in" if jax.default_backend() == "cpu" else "in_out"


def axis_sizes(config: T5Config) -> dict[str, tuple[str, int]]:
    """For each logical axis that a mesh may cut, what its size is called and the size."""
    return {
        "heads": ("num_heads", config.num_heads),
        "joined_kv": ("num_heads", config.num_heads),  # Cut between heads, not inside one.
        "mlp": ("d_ff", config.d_ff),
        "vocab": ("vocab_size", config.vocab_size),
        "embed": ("d_model", config.d_model),
        "kv": ("head_dim", config.head_dim),
    }


@pytree
class EncodedT5:
    """What decoding needs of the inputs."""

    # Each layer's cross-attention keys and values.
    keys: tuple[Float[Array, "b h s k"], ...]
    values: tuple[Float[Array, "b h s k"], ...]
    mask: Bool[Array, "b s"]  # Which inputs are no filler.
    output: Float[Array, "b s d"]  # The encoder's, which a draft may start from.


@dataclasses.dataclass(frozen=True)
class T5Model:
    """A T5 that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: T5Config  # Its shape. ``config.dtype`` is that of activations and cache.
    # How packed kernels are stored; see `best_layout`.
    layout: Layout = dataclasses.field(default_factory=best_layout)
    # How it lies on a mesh of devices; None for one device. Only "in_out" kernels can be cut.
    partitioning: Partitioning | None = None
    # A draft of the same target in fewer bits: what that made of the inputs is this one's, too.
    of_target: bool = False

    def __post_init__(self):
        if self.partitioning is None:
            return
        if self.layout != "in_out":
            raise ValueError(f'A mesh can cut "in_out" kernels, not {self.layout!r} ones.')
        self.partitioning.check(axis_sizes(self.config))

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return (self.config.eos_id, *self.config.more_eos_ids)

    @property
    def decoder_start_id(self) -> int:
        """What the first output token follows."""
        return self.config.decoder_start_id

    @property
    def dtype(self) -> jnp.dtype:
        """Of activations and cache; kernels and embedding may have fewer bits."""
        return jnp.dtype(self.config.dtype)

    def pack(
        self, params: Params, output_tokens: Sequence[int] | None = None,
        narrow: str | None = None, *, int8: bool = False,
    ) -> PackedT5:  # fmt: skip
        """Decode parameters from a checkpoint tree; see :func:`specdec.models.t5.packing.pack`.

        Args:
          int8: all kernels and the embedding have 8 bits, the encoder's too.

        Raises:
          ValueError: 8 bits on a mesh that cuts kernels.
        """
        ops, store = self._ops, Store(self._ops.pack, self._ops.pack_whole, lambda table: table)
        if int8:
            self.check_whole()

            def packed(kernel: Array, pack=ops.pack) -> Kernel:
                return ops.quantize(pack(kernel), 8, 0)

            store = Store(packed, functools.partial(packed, pack=ops.pack_whole), int8_rows)
        return packing.pack(
            params,
            self.config,
            store,
            jnp.dtype(narrow) if narrow else None,
            self.partitioning,
            output_tokens,
        )

    def step_bytes(self, params: PackedT5) -> int:
        logits = params.embedding if params.logits is None else params.logits
        return num_bytes((params.layers, params.final_norm, params.relpos, logits))

    def quantized(
        self, params: PackedT5, bits: int, group: int, *, of_target: bool
    ) -> tuple[T5Model, PackedT5]:
        """The decoder's kernels, and the logits', in few bits; all else is shared."""
        self.check_whole()
        logits = self._ops.tied(params.embedding) if params.logits is None else params.logits
        if bits == 8 and isinstance(logits, Int8Kernel):
            raise ValueError("The model's weights have 8 bits already: choose Quantized(bits=4).")
        quantize = jax.jit(functools.partial(self._ops.quantize, bits=bits, group=group))
        layers = tuple(
            dataclasses.replace(layer, **{name: quantize(k) for name, k in kernels.items()})
            for layer, kernels in zip(params.layers, params.kernels(), strict=True)
        )
        params = dataclasses.replace(params, layers=layers, logits=quantize(logits))
        if of_target:
            params = dataclasses.replace(params, encoder=None, cross_kv=None)
        return dataclasses.replace(self, of_target=of_target), params

    def check_whole(self) -> None:
        """Raises ValueError on a mesh that cuts kernels, which weights of few bits do not allow."""
        cut = [
            axis for axis in axis_sizes(self.config)
            if self.partitioning is not None and self.partitioning.ways(axis) > 1
        ]  # fmt: skip
        if cut:
            raise ValueError(
                f"Weights of few bits cannot be cut, and this mesh cuts {', '.join(cut)}: scales "
                "would be apart from what they belong to. Choose a mesh whose model axis is 1."
            )

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        """The texts are the encoder's inputs; the prefix is the start token."""
        batch = len(tokens)
        start = np.full((batch, 1), self.config.decoder_start_id, np.int32)
        return Prompt(tokens, lengths, start, np.ones(batch, np.int32))

    def start(
        self, params: PackedT5, prompt: Prompt, max_len: int, target: EncodedT5 | None = None
    ) -> Start:
        """Runs the encoder, projects its output to cross-attention K/V, prefills the prefix.

        Raises:
          ValueError: it starts from a target's encoding, and is given none or one of another width.
        """
        cfg, batch, before = self.config, prompt.batch_size, prompt.prefix.shape[1] - 1
        with self._resolving(batch):
            if self.of_target and target is not None:
                encoded = target
            else:
                encoded = self._encoded(params, prompt, target)
            cache = kv.init_cache(
                cfg.num_decoder_layers, batch, cfg.num_heads, before + max_len, cfg.head_dim,
                self.dtype,
            )  # fmt: skip
        if before:
            _, cache = self.extend(params, encoded, cache, prompt.prefix[:, :-1])
            cache = self.commit(cache, None, prompt.prefix_lengths - 1)
        return Start(encoded, cache, prompt.last_token)

    def extend(
        self, params: PackedT5, encoded: EncodedT5, cache: kv.KVCache, tokens: Int[Array, "b t"],
        topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        with self._resolving(len(tokens)):
            return self._extend(params, encoded, cache, tokens, topology, after)

    def logits(self, params: PackedT5, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        with self._resolving(len(hidden)):
            return self._logits(params, hidden)

    def commit(
        self, cache: kv.KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> kv.KVCache:
        with self._resolving(len(count)):
            return kv.commit(cache, path, count)

    def select(self, cache: kv.KVCache, rows: Int[Array, "g n"]) -> kv.KVCache:
        with self._resolving(len(rows)):
            return kv.select(cache, rows)

    def over_vocabulary(self, params: PackedT5, distribution: Distribution) -> Distribution:
        if params.output_tokens is None:
            return distribution
        return spread(distribution, params.output_tokens, self.vocab_size)

    @property
    def _ops(self):
        return few_tokens if self.layout == "out_in" else plain

    def _resolving(self, batch_size: int) -> contextlib.AbstractContextManager:
        """What constraints mean: this model's own rules, or nothing."""
        if self.partitioning is None:
            return contextlib.nullcontext()
        return self.partitioning.resolving(batch_size)

    def _encoded(self, params, prompt, target) -> EncodedT5:
        cfg, mask, encoding = self.config, prompt.input_mask, None
        if cfg.encoding_width is not None and target is not None:
            encoding = target.output
        check_encoding(cfg, encoding)
        output = self._encode(params, prompt.inputs, mask, encoding)
        batch, length, _ = output.shape
        projected = self._ops.product(params.cross_kv, output)
        split = projected.reshape(
            batch, length, 2, cfg.num_decoder_layers, cfg.num_heads, cfg.head_dim
        ).transpose(2, 3, 0, 4, 1, 5)
        split = constrain(split, (None, None, *kv.CACHE_AXES))
        layers = range(cfg.num_decoder_layers)
        return EncodedT5(
            tuple(split[0, i] for i in layers), tuple(split[1, i] for i in layers), mask, output
        )

    def _encode(self, params, inputs, mask, encoding) -> Float[Array, "b s d"]:
        encoder = params.encoder
        x = self._embedded(params, inputs)
        if encoder.input_projection is not None:
            x = _hidden(x + self._ops.product(encoder.input_projection, encoding))
        padding = jnp.where(mask, 0.0, NEG_INF)[:, None, None, :]
        if encoder.layers:
            place = jnp.arange(inputs.shape[1])
            buckets = relative_position_buckets(
                place[None, :] - place[:, None], self.config, bidirectional=True
            )
            bias = encoder.relpos[:, buckets] + padding
        for layer in encoder.layers:
            query, key, value = self._queries_keys_values(layer, x)
            h = self._attend(self._heads(query), self._heads(key), self._heads(value), bias)
            x = _hidden(x + self._ops.product(layer.self_out, h))
            x = _hidden(x + self._ops.product(layer.wo, self._feed_forward(layer, x)))
        return self._normed(x, encoder.final_norm)

    def _embedded(self, params, tokens) -> Float[Array, "b t d"]:
        embedded = self._ops.embed(params.embedding, tokens).astype(self.dtype)
        # Else widening is fused with what follows, which then may round otherwise.
        return _hidden(jax.lax.optimization_barrier(embedded))

    def _extend(self, params, encoded, cache, tokens, topology, after):
        length, max_len, count = cache.length, cache.keys[0].shape[2], tokens.shape[1]
        mask = kv.block_mask(topology, length, max_len, count, after)
        bias = self._bias(params, topology, length, max_len, count, after)
        self_bias = jnp.where(mask[:, None], bias, NEG_INF)
        cross_bias = jnp.where(encoded.mask, 0.0, NEG_INF)[:, None, None, :]

        x = self._embedded(params, tokens)
        keys, values = [], []
        for layer, cross_key, cross_value, old_key, old_value in zip(
            params.layers, encoded.keys, encoded.values, cache.keys, cache.values, strict=True
        ):
            query, key, value = self._queries_keys_values(layer, x)
            key = kv.write(old_key, self._heads(key), length + after)
            value = kv.write(old_value, self._heads(value), length + after)
            # One update in place; fused into its readers it would be several, and copies.
            key, value = jax.lax.optimization_barrier((key, value))
            keys.append(key)
            values.append(value)
            h = self._attend(self._heads(query), key, value, self_bias)
            x = _hidden(x + self._ops.product(layer.self_out, h))

            query = self._ops.product(layer.cross_query, self._normed(x, layer.cross_norm))
            # Rows that share an encoding are as tokens of one row to it.
            query = query.reshape(len(cross_key), -1, query.shape[-1])
            h = self._attend(self._heads(query), cross_key, cross_value, cross_bias)
            h = h.reshape(*x.shape[:2], -1)
            x = _hidden(x + self._ops.product(layer.cross_out, h))

            x = _hidden(x + self._ops.product(layer.wo, self._feed_forward(layer, x)))
        return x, kv.KVCache(tuple(keys), tuple(values), length)

    def _normed(self, x: Float[Array, "b t d"], scale: Float[Array, " d"]) -> Float[Array, "b t d"]:
        """x / rms(x) times the norm's scale."""
        inverse = jax.lax.rsqrt(self._ops.mean_square(x) + self.config.layer_norm_epsilon)
        return (x * inverse * scale).astype(x.dtype)

    def _queries_keys_values(self, layer: PackedLayer, x: Float[Array, "b t d"]):
        products = self._ops.product(layer.self_qkv, self._normed(x, layer.self_norm))
        return self._ops.split(products, 3)

    def _heads(self, x: Float[Array, "b t i"]) -> Float[Array, "b h t k"]:
        split = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
        return constrain(split.transpose(0, 2, 1, 3), kv.CACHE_AXES)

    def _attend(self, query, keys, values, bias) -> Float[Array, "b t i"]:
        weights, total = softmax_parts(self._ops.scores(query, keys) + bias)
        out = self._ops.mix(weights.astype(values.dtype), values) / total.astype(values.dtype)
        out = out.transpose(0, 2, 1, 3)
        return out.reshape(*out.shape[:2], -1)

    def _feed_forward(self, layer: PackedLayer, x: Float[Array, "b t d"]) -> Float[Array, "b t f"]:
        act = ACTIVATIONS[self.config.activation]
        hidden = self._ops.product(layer.wi, self._normed(x, layer.mlp_norm))
        if self.config.gated:
            gate, hidden = self._ops.split(hidden, 2)
            hidden = act(gate) * hidden
        else:
            hidden = act(hidden)
        return constrain(hidden, MLP_AXES)

    def _logits(self, params: PackedT5, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        kernel = self._ops.tied(params.embedding) if params.logits is None else params.logits
        logits = self._ops.product(kernel, self._normed(x, params.final_norm), jnp.float32)
        if self.config.tied_logits:
            logits = logits * self.config.d_model**-0.5
        cut = "vocab" if params.output_tokens is None else None
        logits = constrain(logits, ("batch", "length", cut))
        # Gathered once: all that is made of them is small, and not cut by vocabulary.
        return constrain(logits, ("batch", "length", None))

    def _bias(self, params, topology, length, max_len, count, after) -> Float[Array, "b h t m"]:
        query = kv.token_positions(topology, length, count, after)
        slots = kv.slot_positions(topology, length, max_len, after + count)
        buckets = relative_position_buckets(
            slots[:, None, :] - query[:, :, None], self.config, bidirectional=False
        )
        bias = params.relpos[:, buckets].transpose(1, 0, 2, 3)
        return constrain(bias, ("batch", "heads", "length", None))


def _hidden(x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    return constrain(x, HIDDEN_AXES)
