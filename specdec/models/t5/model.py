"""T5 as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes. One decode step is bound by reading the weights once, so
they are packed once at load: query, key and value fused into one product, wi_0 and wi_1 into
another, every layer's cross-attention K/V projected in one product at encode time, norm scales
multiplied into the kernels that follow. On CPU each kernel is stored out-features first, which
``few_tokens.py`` reads once for all tokens.

Shapes: B batch, S input length, T block length, M cache length, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.reductions import softmax_parts
from specdec.models import cache as kv
from specdec.models.t5 import few_tokens, plain
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import (
    ACTIVATIONS,
    NEG_INF,
    Transformer,
    relative_position_buckets,
)
from specdec.types import Params, Topology, pytree

Layout = Literal["out_in", "in_out"]
Kernel = Array  # As few_tokens.py or plain.py packs it.


def best_layout() -> Layout:
    """The kernel layout for the default backend."""
    return "out_in" if jax.default_backend() == "cpu" else "in_out"


@pytree
class PackedLayer:
    """One decoder layer; kernels in the model's layout.

    Attributes:
      self_qkv: D -> 3I; self_out: I -> D; cross_query: D -> I; cross_out: I -> D;
      wi: D -> F or 2F when gated; wo: F -> D. Those from D hold the scale of the norm before.
    """

    self_qkv: Kernel
    self_out: Kernel
    cross_query: Kernel
    cross_out: Kernel
    wi: Kernel
    wo: Kernel


@pytree
class PackedT5:
    """Decode parameters.

    Attributes:
      encoder: the checkpoint's ``encoder`` subtree, as it is.
      embedding: [V, D]; shared with the logits when they are tied.
      cross_kv: D -> 2 * layers * I, every decoder layer's cross-attention keys and values.
      layers: the decoder.
      relpos: [H, num_buckets], the decoder's position biases.
      final_norm: [D].
      logits: D -> V, or None when tied.
    """

    encoder: Params
    embedding: Float[Array, "v d"]
    cross_kv: Kernel
    layers: tuple[PackedLayer, ...]
    relpos: Float[Array, "h r"]
    final_norm: Float[Array, " d"]
    logits: Kernel | None


@pytree
class EncodedT5:
    """Cross-attention keys and values [B, H, S, K] for each layer, and the inputs' mask [B, S]."""

    keys: tuple[Float[Array, "b h s k"], ...]
    values: tuple[Float[Array, "b h s k"], ...]
    mask: Bool[Array, "b s"]


@dataclasses.dataclass(frozen=True)
class T5Model:
    """A T5 that can be extended, committed and rolled back.

    Attributes:
      config: its shape. ``config.dtype`` is that of weights, activations and cache.
      layout: how packed kernels are stored; see :func:`best_layout`.
      kernel_dtype: what the decoder's kernels and the embedding are stored in; arithmetic stays in
        ``config.dtype``. None stores them in that too.
    """

    config: T5Config
    layout: Layout = dataclasses.field(default_factory=best_layout)
    kernel_dtype: str | None = None

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    @property
    def eos_id(self) -> int:
        return self.config.eos_id

    @property
    def decoder_start_id(self) -> int:
        return self.config.decoder_start_id

    @property
    def dtype(self) -> jnp.dtype:
        """Of weights, activations and cache."""
        return jnp.dtype(self.config.dtype)

    def pack(self, params: Params) -> PackedT5:
        """Decode parameters from a checkpoint tree (T5X's names; kernels [in, out])."""
        decoder = params["decoder"]
        layers = [decoder[f"layers_{i}"] for i in range(self.config.num_decoder_layers)]
        wi = ("wi_0", "wi_1") if self.config.gated else ("wi",)
        stored = jnp.dtype(self.kernel_dtype or self.config.dtype)

        def fuse(*kernels, norm=None, dtype=stored):
            joined = jnp.concatenate([jnp.asarray(k["kernel"]) for k in kernels], axis=1)
            if norm is not None:
                joined = joined * jnp.asarray(norm["scale"])[:, None]
            return self._ops.pack(joined.astype(dtype))

        def pack_layer(layer):
            own, cross, mlp = (
                layer["self_attention"], layer["encoder_decoder_attention"], layer["mlp"],
            )  # fmt: skip
            return PackedLayer(
                self_qkv=fuse(
                    own["query"],
                    own["key"],
                    own["value"],
                    norm=layer["pre_self_attention_layer_norm"],
                ),
                self_out=fuse(own["out"]),
                cross_query=fuse(cross["query"], norm=layer["pre_cross_attention_layer_norm"]),
                cross_out=fuse(cross["out"]),
                wi=fuse(*(mlp[name] for name in wi), norm=layer["pre_mlp_layer_norm"]),
                wo=fuse(mlp["wo"]),
            )

        # The large ones first, while little else is in memory: packing needs a copy.
        logits = None if self.config.tied_logits else fuse(decoder["logits_dense"])
        embedding = jnp.asarray(params["token_embedder"]["embedding"], stored)
        crosses = [layer["encoder_decoder_attention"] for layer in layers]
        cross_kv = fuse(
            *(c["key"] for c in crosses), *(c["value"] for c in crosses), dtype=self.dtype
        )
        return PackedT5(
            encoder=jax.tree.map(lambda a: jnp.asarray(a, self.dtype), params["encoder"]),
            embedding=embedding,
            cross_kv=cross_kv,
            layers=tuple(pack_layer(layer) for layer in layers),
            relpos=jnp.asarray(decoder["relpos_bias"]["rel_embedding"], jnp.float32),
            final_norm=jnp.asarray(decoder["decoder_norm"]["scale"], self.dtype),
            logits=logits,
        )

    def encode(self, params: PackedT5, inputs: Int[Array, "b s"]) -> EncodedT5:
        """Runs the encoder and projects its output to every layer's cross-attention K/V."""
        cfg = self.config
        tree = {
            "encoder": params.encoder,
            "token_embedder": {"embedding": params.embedding},
        }
        output = jnp.asarray(Transformer(cfg).apply({"params": tree}, inputs, method="encode"))
        batch, length, _ = output.shape
        projected = self._ops.product(params.cross_kv, output)
        split = projected.reshape(
            batch, length, 2, cfg.num_decoder_layers, cfg.num_heads, cfg.head_dim
        ).transpose(2, 3, 0, 4, 1, 5)
        layers = range(cfg.num_decoder_layers)
        return EncodedT5(
            tuple(split[0, i] for i in layers),
            tuple(split[1, i] for i in layers),
            inputs != cfg.pad_id,
        )

    def init_cache(self, batch_size: int, max_len: int) -> kv.KVCache:
        """An empty cache."""
        cfg = self.config
        return kv.init_cache(
            cfg.num_decoder_layers, batch_size, cfg.num_heads, max_len, cfg.head_dim, self.dtype
        )

    def extend(
        self,
        params: PackedT5,
        encoded: EncodedT5,
        cache: kv.KVCache,
        tokens: Int[Array, "b t"],
        topology: Topology | None = None,
    ) -> tuple[Float[Array, "b t v"], kv.KVCache]:
        """See :meth:`specdec.models.base.Model.extend`."""
        topology = topology or Topology.chain(tokens.shape[1])
        max_len = cache.keys[0].shape[2]
        mask = kv.block_mask(topology, cache.length, max_len)
        bias = self._bias(params, topology, cache.length, max_len)
        self_bias = jnp.where(mask[:, None], bias, NEG_INF)
        cross_bias = jnp.where(encoded.mask, 0.0, NEG_INF)[:, None, None, :]

        x = self._ops.embed(params.embedding, tokens).astype(self.dtype)
        keys, values = [], []
        for layer, cross_key, cross_value, old_key, old_value in zip(
            params.layers, encoded.keys, encoded.values, cache.keys, cache.values, strict=True
        ):
            query, key, value = jnp.split(self._normed_product(layer.self_qkv, x), 3, axis=-1)
            key = kv.write(old_key, self._heads(key), cache.length)
            value = kv.write(old_value, self._heads(value), cache.length)
            # One update in place; fused into its readers it would be several, and copies.
            key, value = jax.lax.optimization_barrier((key, value))
            keys.append(key)
            values.append(value)
            h = self._attend(self._heads(query), key, value, self_bias)
            x = x + self._ops.product(layer.self_out, h)

            query = self._heads(self._normed_product(layer.cross_query, x))
            h = self._attend(query, cross_key, cross_value, cross_bias)
            x = x + self._ops.product(layer.cross_out, h)

            x = x + self._ops.product(layer.wo, self._hidden(layer, x))
        return self._logits(params, x), kv.KVCache(tuple(keys), tuple(values), cache.length)

    def commit(
        self, cache: kv.KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> kv.KVCache:
        """See :func:`specdec.models.cache.commit`."""
        return kv.commit(cache, path, count)

    @property
    def _ops(self):
        return few_tokens if self.layout == "out_in" else plain

    def _normed_product(self, kernel: Array, x: Float[Array, "b t d"]) -> Float[Array, "b t o"]:
        """The product with x / rms(x); the scale is in the kernel, the division comes after."""
        mean_square = self._ops.mean_square(x)
        inverse = jax.lax.rsqrt(mean_square + self.config.layer_norm_epsilon)
        return (self._ops.product(kernel, x) * inverse).astype(x.dtype)

    def _heads(self, x: Float[Array, "b t i"]) -> Float[Array, "b h t k"]:
        split = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
        return split.transpose(0, 2, 1, 3)

    def _attend(self, query, keys, values, bias) -> Float[Array, "b t i"]:
        weights, total = softmax_parts(self._ops.scores(query, keys) + bias)
        out = self._ops.mix(weights.astype(values.dtype), values) / total.astype(values.dtype)
        out = out.transpose(0, 2, 1, 3)
        return out.reshape(*out.shape[:2], -1)

    def _hidden(self, layer: PackedLayer, x: Float[Array, "b t d"]) -> Float[Array, "b t f"]:
        act = ACTIVATIONS[self.config.activation]
        hidden = self._normed_product(layer.wi, x)
        if self.config.gated:
            gate, hidden = jnp.split(hidden, 2, axis=-1)
            return act(gate) * hidden
        return act(hidden)

    def _logits(self, params: PackedT5, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        inverse = jax.lax.rsqrt(self._ops.mean_square(x) + self.config.layer_norm_epsilon)
        x = x * params.final_norm
        if params.logits is not None:
            return self._ops.product(params.logits, x).astype(jnp.float32) * inverse
        inverse = inverse * self.config.d_model**-0.5
        return self._ops.product(self._ops.tied(params.embedding), x).astype(jnp.float32) * inverse

    def _bias(self, params, topology, length, max_len) -> Float[Array, "b h t m"]:
        query = length[:, None] + jnp.asarray(kv.depths(topology))
        slots = kv.slot_positions(topology, length, max_len)
        buckets = relative_position_buckets(
            slots[:, None, :] - query[:, :, None], self.config, bidirectional=False
        )
        return params.relpos[:, buckets].transpose(1, 0, 2, 3)
