"""GPT-2 as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` stored at load. A text is
the decoder's prefix: it is prefilled in one call and never output.

Shapes: B batch, P prefix length, T block length, M cache length, H heads, K head_dim, D d_model.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.models import cache as kv
from specdec.models.base import continued
from specdec.models.gpt import packing
from specdec.models.gpt.config import GPTConfig
from specdec.models.gpt.packing import PackedGPT
from specdec.models.layer_normed import LayerNormModel
from specdec.models.packed import NEG_INF, hidden
from specdec.types import AnyArray, Encoded, Prompt, Start


@dataclasses.dataclass(frozen=True)
class GPTModel(LayerNormModel):
    """A GPT that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: GPTConfig

    @property
    def packing(self):
        return packing

    @property
    def depth(self) -> int:
        return self.config.num_layers

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def step_params(self, params: PackedGPT) -> PackedGPT:
        return dataclasses.replace(super().step_params(params), positions=None)

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        """The texts are the decoder's prefix; an empty one is the start token."""
        return continued(tokens, lengths, self.config.start_id)

    def start(
        self, params: PackedGPT, prompt: Prompt, max_len: int, given: Encoded | None = None
    ) -> Start:
        """Prefills the prefix but for its last token, without logits."""
        del given
        before = prompt.prefix.shape[1] - 1
        cache = self.empty_cache(prompt.batch_size, before + max_len)
        return self.prefilled(params, (), cache, prompt)

    def _extend(self, params, encoded, cache, x, topology, after):
        del encoded
        length, max_len, count = cache.length, cache.keys[0].shape[2], x.shape[1]
        mask = kv.block_mask(topology, length, max_len, count, after)
        bias = jnp.where(mask, 0.0, NEG_INF)[:, None]
        positions = kv.token_positions(topology, length, count, after)
        # Only filler and finished rows, whose output is fixed, can be beyond the last position.
        positions = jnp.broadcast_to(jnp.clip(positions, 0, self.max_positions - 1), x.shape[:2])
        positions = self.ops.embed(params.positions, positions).astype(self.dtype)
        x = hidden(x + positions)
        keys, values = [], []
        for layer, old in zip(
            params.layers, zip(cache.keys, cache.values, strict=True), strict=True
        ):
            h, key, value = self._self_attention(layer, x, old, bias, length + after)
            keys.append(key)
            values.append(value)
            x = self._added(x, h, layer.self_out, layer.out_bias)
            x = self._added(x, self._feed_forward(layer, x), layer.wo, layer.wo_bias)
        return x, kv.KVCache(tuple(keys), tuple(values), length)

    def _logits(self, params: PackedGPT, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return self._logits_of_normed(params, x)
