"""T5 as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` fused at load. What it has
in common with other transformers is in :mod:`specdec.models.packed`.

Shapes: B batch, S input length, T block length, M cache length, H heads, K head_dim, I = H * K.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.packed import MLP_AXES, NEG_INF, PackedModel, hidden
from specdec.models.partitioning import constrain
from specdec.models.products import fused
from specdec.models.t5 import packing
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import ACTIVATIONS, check_encoding, relative_position_buckets
from specdec.models.t5.packing import PackedLayer, PackedT5
from specdec.pytrees import pytree
from specdec.types import AnyArray, Prompt, Start


@pytree
class EncodedT5:
    """What decoding needs of the inputs."""

    # Each layer's cross-attention keys and values.
    keys: tuple[Float[Array, "b h s k"], ...]
    values: tuple[Float[Array, "b h s k"], ...]
    mask: Bool[Array, "b s"]  # Which inputs are no filler.
    output: Float[Array, "b s d"]  # The encoder's, which a draft may start from.


@dataclasses.dataclass(frozen=True)
class T5Model(PackedModel):
    """A T5 that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: T5Config

    @property
    def packing(self):
        return packing

    @property
    def decoder_start_id(self) -> int:
        """What the first output token follows."""
        return self.config.decoder_start_id

    @property
    def depth(self) -> int:
        return self.config.num_decoder_layers

    @property
    def max_positions(self) -> None:
        return None

    @property
    def reads_prefix(self) -> bool:
        return False

    def step_params(self, params: PackedT5) -> PackedT5:
        return dataclasses.replace(super().step_params(params), encoder=None, cross_kv=None)

    def quantized(
        self, params: PackedT5, bits: int, group: int, *, of_target: bool
    ) -> tuple[T5Model, PackedT5]:
        """The decoder's kernels, and the logits', in few bits; all else is shared."""
        _, params = super().quantized(params, bits, group, of_target=of_target)
        if of_target:
            params = dataclasses.replace(params, encoder=None, cross_kv=None)
        return self, params

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        """The texts are the encoder's inputs; the prefix is the start token."""
        batch = len(tokens)
        start = np.full((batch, 1), self.config.decoder_start_id, np.int32)
        return Prompt(tokens, lengths, start, np.ones(batch, np.int32))

    def start(
        self, params: PackedT5, prompt: Prompt, max_len: int, given: EncodedT5 | None = None
    ) -> Start:
        """Runs the encoder, projects its output to cross-attention K/V, prefills the prefix.

        Raises:
          ValueError: it starts from a target's encoding, and is given none or one of another width.
        """
        batch, before = prompt.batch_size, prompt.prefix.shape[1] - 1
        with self._resolving(batch):
            if params.encoder is None and given is not None:
                encoded = given  # What the same model in more bits made of the inputs.
            else:
                encoded = self._encoded(params, prompt, given)
            cache = self.empty_cache(batch, before + max_len)
        return self.prefilled(params, encoded, cache, prompt)

    def _encoded(self, params, prompt, given) -> EncodedT5:
        cfg, mask, encoding = self.config, prompt.input_mask, None
        if cfg.encoding_width is not None and given is not None:
            encoding = given.output
        check_encoding(cfg, encoding)
        return self.attended(params, self._encode(params, prompt.inputs, mask, encoding), mask)

    def attended(
        self, params: Any, output: Float[Array, "b s d"], mask: Bool[Array, "b s"]
    ) -> EncodedT5:
        """What each layer attends to, of an encoder's output."""
        cfg = self.config
        count = cfg.num_decoder_layers
        projected = self.ops.product(params.cross_kv, output)
        heads = self._cached_heads(len(output))
        split = [
            attention.entries(each, heads)
            for each in self._split(projected, 2 * count, "joined_kv")
        ]
        return EncodedT5(tuple(split[:count]), tuple(split[count:]), mask, output)

    def _encode(self, params, inputs, mask, encoding) -> Float[Array, "b s d"]:
        encoder = params.encoder
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

    def _attend_to(
        self, encoded: EncodedT5, layer: Any, i: int, x: Float[Array, "b t d"]
    ) -> Float[Array, "b t i"]:
        """Cross-attention of layer i."""
        bias = jnp.where(encoded.mask, 0.0, NEG_INF)[:, None, None, :]
        query = self._product_of_normed(x, layer.cross_norm, layer.cross_query)
        # Rows that share an encoding are as tokens of one row to it.
        query = query.reshape(len(encoded.mask), -1, query.shape[-1])
        h = self._cross_attention(query, encoded.keys[i], encoded.values[i], bias)
        return h.reshape(*x.shape[:2], -1)

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
