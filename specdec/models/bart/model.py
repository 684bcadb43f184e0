"""BART and its kin as the decode loop's :class:`~specdec.models.base.Model`: weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` stored at load. What it has
in common with other models is in ``packed.py``, ``encoder_decoder.py`` and ``layer_normed.py``.

Where norms are after each part, what is added to is what was normalised. So a norm stands before
each part all the same, and a last one behind all layers; only what is added to differs.

Shapes: B batch, S input length, T block length, M cache length, H heads, D d_model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.bart import packing
from specdec.models.bart.config import BartConfig
from specdec.models.bart.packing import PackedBart
from specdec.models.encoder_decoder import EncoderDecoderModel
from specdec.models.layer_normed import LayerNormModel, Norm
from specdec.models.packed import NEG_INF, hidden
from specdec.types import Params


@dataclasses.dataclass(frozen=True)
class BartModel(EncoderDecoderModel, LayerNormModel):
    """A BART, mBART, M2M100, Marian or Pegasus that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: BartConfig

    @property
    def packing(self):
        return packing

    @property
    def input_vocab_size(self) -> int:
        return self.config.encoder_vocab_size or self.vocab_size

    @property
    def axis_sizes(self) -> dict[str, dict[str, int]]:
        sizes, own = super().axis_sizes, self.config.encoder_vocab_size
        if own is not None:
            sizes["vocab"]["encoder_vocab_size"] = own
        return sizes

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def step_params(self, params: PackedBart) -> PackedBart:
        params = super().step_params(params)
        return dataclasses.replace(params, positions=None, kv_bias=None)

    def restricted(
        self, packed: PackedBart, params: Params, output_tokens: Sequence[int], narrow: str | None
    ) -> PackedBart:
        found = super().restricted(packed, params, output_tokens, narrow)
        if packed.logits_bias is None:
            return found
        return dataclasses.replace(found, logits_bias=packed.logits_bias[found.output_tokens])

    def _before(self, norm: Norm | None) -> Norm | None:
        return norm if self.config.pre_norm else None

    def _added_to(self, x: Float[Array, "b t d"], norm: Norm | None) -> Float[Array, "b t d"]:
        """The input of a part: the output of the part before it, with the norm between them."""
        if self.config.pre_norm or norm is None:
            return x
        return jax.lax.optimization_barrier(hidden(self._normed(x, norm)))

    def _embedded(self, params: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        x = super()._embedded(params, tokens)
        return x * self.config.d_model**0.5 if self.config.scaled_embedding else x

    def _with_positions(
        self, params: Any, x: Float[Array, "b t d"], positions: Int[Array, "#b t"]
    ) -> Float[Array, "b t d"]:
        # Only filler and finished rows, whose output is fixed, can be beyond the last position.
        positions = jnp.broadcast_to(jnp.clip(positions, 0, self.max_positions - 1), x.shape[:2])
        x = hidden(x + self.ops.embed(params.positions, positions).astype(self.dtype))
        if params.embedding_norm is None:
            return x
        return jax.lax.optimization_barrier(hidden(self._normed(x, params.embedding_norm)))

    def _encode(self, params, prompt, mask, given) -> Float[Array, "b s d"]:
        del given
        encoder, inputs = params.encoder, prompt.inputs
        x = self._embedded(params if encoder.embedding is None else encoder, inputs)
        x = self._with_positions(encoder, x, np.arange(inputs.shape[1])[None])
        bias = jnp.where(mask, 0.0, NEG_INF)[:, None, None, :]
        for layer in encoder.layers:
            x = self._added_to(x, layer.self_norm)
            query, key, value = self._queries_keys_values(layer, x)
            key, value = (attention.entries(a, self.config.num_heads) for a in (key, value))
            h = self._attend(query, key, value, bias)
            x = self._added(x, h, layer.self_out, layer.out_bias)
            x = self._added_to(x, layer.mlp_norm)
            x = self._added(x, self._feed_forward(layer, x), layer.wo, layer.wo_bias)
        return self._normed(x, encoder.final_norm)

    def _cross_keys_values(self, params, output):
        split = super()._cross_keys_values(params, output)
        return [each + params.kv_bias[i] for i, each in enumerate(split)]

    def _extend(self, params, encoded, cache, x, topology, after):
        length, max_len, count = cache.length, cache.keys[0].shape[2], x.shape[1]
        mask = kv.block_mask(topology, length, max_len, count, after)
        bias = jnp.where(mask, 0.0, NEG_INF)[:, None]
        x = self._with_positions(params, x, kv.token_positions(topology, length, count, after))
        keys, values = [], []
        for i, (layer, *old) in enumerate(
            zip(params.layers, cache.keys, cache.values, strict=True)
        ):
            x = self._added_to(x, layer.self_norm)
            h, key, value = self._self_attention(layer, x, old, bias, length + after)
            keys.append(key)
            values.append(value)
            x = self._added(x, h, layer.self_out, layer.out_bias)
            x = self._added_to(x, layer.cross_norm)
            h = self._attend_to(encoded, layer, i, x)
            x = self._added(x, h, layer.cross_out, layer.cross_bias)
            x = self._added_to(x, layer.mlp_norm)
            x = self._added(x, self._feed_forward(layer, x), layer.wo, layer.wo_bias)
        return x, kv.KVCache(tuple(keys), tuple(values), length)

    def _cross_query(self, layer: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t i"]:
        norm = self._before(layer.cross_norm)
        return self._product_of_normed(x, norm, layer.cross_query, layer.query_bias)

    def _logits(self, params: PackedBart, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return self._logits_of_normed(params, x, params.logits_bias)
