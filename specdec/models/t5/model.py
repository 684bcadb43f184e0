"""T5 as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` fused at load. What it has
in common with other models is in :mod:`specdec.models.packed` and
:mod:`specdec.models.encoder_decoder`.

Shapes: B batch, S input length, T block length, M cache length, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.encoder_decoder import EncoderDecoderModel
from specdec.models.packed import MLP_AXES, NEG_INF, hidden
from specdec.models.partitioning import constrain
from specdec.models.products import fused
from specdec.models.t5 import packing
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import ACTIVATIONS, check_encoding, relative_position_buckets
from specdec.models.t5.packing import PackedLayer, PackedT5


@dataclasses.dataclass(frozen=True)
class T5Model(EncoderDecoderModel):
    """A T5 that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: T5Config

    @property
    def packing(self):
        return packing

    @property
    def max_positions(self) -> None:
        return None

    def _encode(self, params, prompt, mask, given) -> Float[Array, "b s d"]:
        encoder, inputs, encoding = params.encoder, prompt.inputs, None
        if self.config.encoding_width is not None and given is not None:
            encoding = given.output
        check_encoding(self.config, encoding)
        x = self._embedded(params, inputs)
        if encoder.input_projection is not None:
            x = hidden(x + self.ops.product(encoder.input_projection, encoding))
        padding = jnp.where(mask, 0.0, NEG_INF)[:, None, None, :]
        position = jnp.arange(inputs.shape[1])
        buckets = relative_position_buckets(
            position[None, :] - position[:, None], self.config, bidirectional=True
        )

        def bias_of(relpos):
            return relpos[:, buckets] + padding

        shared = None if encoder.relpos is None else bias_of(encoder.relpos)
        for layer in encoder.layers:
            bias = shared if layer.relpos is None else bias_of(layer.relpos)
            query, key, value = self._queries_keys_values(layer, x)
            heads = self.config.num_heads
            key, value = (attention.entries(each, heads) for each in (key, value))
            h = self._attend(query, key, value, bias)
            x = self._added(x, h, layer.self_out)
            x = self._added(x, self._feed_forward(layer, x), layer.wo)
        return self._normed(x, encoder.final_norm)

    def _extend(self, params, encoded, cache, x, topology, after):
        length, max_len, count = cache.length, cache.keys[0].shape[2], x.shape[1]
        mask = kv.block_mask(topology, length, max_len, count, after)
        query_positions = kv.token_positions(topology, length, count, after)
        positions = kv.slot_positions(topology, length, max_len, after + count)
        buckets = relative_position_buckets(
            positions[:, None, :] - query_positions[:, :, None], self.config, bidirectional=False
        )

        def bias_of(relpos) -> Float[Array, "b h t m"]:
            bias = relpos[:, buckets].transpose(1, 0, 2, 3)
            bias = constrain(bias, ("batch", "heads", "length", None))
            return jnp.where(mask[:, None], bias, NEG_INF)

        shared = None if params.relpos is None else bias_of(params.relpos)
        keys, values = [], []
        for i, (layer, *old) in enumerate(
            zip(params.layers, cache.keys, cache.values, strict=True)
        ):
            bias = shared if layer.relpos is None else bias_of(layer.relpos)
            h, key, value = self._self_attention(layer, x, old, bias, length + after)
            keys.append(key)
            values.append(value)
            x = self._added(x, h, layer.self_out)
            if encoded is not None:
                x = self._added(x, self._attend_to(encoded, layer, i, x), layer.cross_out)
            x = self._added(x, self._feed_forward(layer, x), layer.wo)
        return x, kv.KVCache(tuple(keys), tuple(values), length)

    def _cross_query(self, layer: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t i"]:
        return self._product_of_normed(x, layer.cross_norm, layer.cross_query)

    def _normed(self, x: Float[Array, "b t d"], scale: Float[Array, " d"]) -> Float[Array, "b t d"]:
        """x / rms(x) times the norm's scale."""
        inverse = jax.lax.rsqrt(self.ops.mean_square(x) + self.config.layer_norm_epsilon)
        return (x * inverse * scale).astype(x.dtype)

    def _norm(self, scale: Float[Array, " d"]) -> fused.Norm:
        return fused.Norm(scale, None, self.config.layer_norm_epsilon)

    def _joined_queries_keys_values(self, layer: PackedLayer, x: Float[Array, "b t d"]):
        return self._product_of_normed(x, layer.self_norm, layer.self_qkv)

    def _queries_keys_values(self, layer: PackedLayer, x: Float[Array, "b t d"]):
        return self._split(self._joined_queries_keys_values(layer, x), 3, "joined_kv")

    def _feed_forward(self, layer: PackedLayer, x: Float[Array, "b t d"]) -> Float[Array, "b t f"]:
        act, gated = ACTIVATIONS[self.config.activation], self.config.gated
        if self._fuses(x, layer.wi):
            norm = self._norm(layer.mlp_norm)
            return fused.product_of_normed(x, norm, layer.wi, act=act, gated=gated)
        inner = self.ops.product(layer.wi, self._normed(x, layer.mlp_norm))
        if gated:
            gate, inner = self._split(inner, 2, "mlp")
            inner = act(gate) * inner
        else:
            inner = act(inner)
        return constrain(inner, MLP_AXES)

    def _logits(self, params: PackedT5, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        logits = self._logits_of_normed(params, x)
        return logits * self.config.d_model**-0.5 if self.config.tied_logits else logits
