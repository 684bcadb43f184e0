"""The network as the decode loop's :class:`~specdec.models.base.Model`.

It computes what ``network.py`` computes, on weights that ``packing.py`` fused at load. A token
turns by its position in its own sequence, a node by its depth, and keys are cached turned. A cache
holds all entries; layers that see a window mask the others by their positions.

Shapes: B batch, S input length, T block length, M cache length, H heads, G heads of keys and
values, K head_dim, I = H * K, J = G * K.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.base import continued
from specdec.models.encoder_decoder import EncodedInputs, EncoderDecoderModel, padding_bias
from specdec.models.packed import MLP_AXES, NEG_INF, hidden
from specdec.models.partitioning import constrain
from specdec.models.products import fused
from specdec.models.products.quantized import Kernel
from specdec.models.rotary import packing
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.rotary.network import (
    ACTIVATIONS,
    angles,
    capped,
    embedding_scale,
    turned,
    within,
)
from specdec.models.rotary.packing import PackedLayer, PackedRotary
from specdec.types import AnyArray, Prompt, Start


class View(NamedTuple):
    """Bias and angles of a layer's tokens: what they see, and by how much they turn."""

    bias: Float[Array, "b 1 t m"]
    by: Float[Array, "b t k/2"]


@dataclasses.dataclass(frozen=True)
class RotaryModel(EncoderDecoderModel):
    """A decoder or an encoder-decoder that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads of keys, d_ff or vocabulary.
    """

    config: RotaryConfig

    @property
    def packing(self):
        return packing

    @property
    def axis_sizes(self) -> dict[str, dict[str, int]]:
        # Queries go with the key that they share.
        names = {
            "heads": "num_kv_heads", "joined_kv": "num_kv_heads", "mlp": "d_ff",
            "embed": "d_model", "kv": "head_dim",
        }  # fmt: skip
        stacks = {
            "" if name == "decoder" else f"{name}.": stack
            for name, stack in self.config.stacks.items()
        }
        return super().axis_sizes | {
            axis: {f"{before}{name}": getattr(stack, name) for before, stack in stacks.items()}
            for axis, name in names.items()
        }

    @property
    def key_value_heads(self) -> int:
        return self.config.num_kv_heads

    @property
    def image_ids(self) -> tuple[int, ...]:
        return self.config.image_ids

    @property
    def windows(self) -> tuple[int, ...]:
        cfg = self.config
        if cfg.window is None:
            return ()
        return tuple(cfg.window[0] for i in range(cfg.num_layers) if cfg.slides(i))

    @property
    def max_positions(self) -> None:
        return None

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        """The texts are the encoder's inputs; without one, the decoder's prefix."""
        if self.reads_prefix:
            return continued(tokens, lengths, self.config.start_id)
        return super().prompt(tokens, lengths)

    def start(
        self, params: PackedRotary, prompt: Prompt, max_len: int,
        given: EncodedInputs | None = None,
    ) -> Start:  # fmt: skip
        if not self.reads_prefix:
            return super().start(params, prompt, max_len, given)
        before = prompt.prefix.shape[1] - 1
        with self._resolving(prompt.batch_size):
            cache = self.empty_cache(prompt.batch_size, before + max_len)
        return self.prefilled(params, (), cache, prompt)

    def _encode(self, params, prompt, mask, given) -> Float[Array, "b s d"]:
        del given
        encoder, stack = params.encoder, self.config.encoder
        assert stack is not None
        positions = jnp.arange(prompt.inputs.shape[1])[None]
        views = self._views(stack, mask[:, None], positions, positions)
        table = params.embedding if encoder.embedding is None else encoder.embedding
        x = self._scaled(stack, self.ops.embed(table, prompt.inputs).astype(self.dtype))
        heads = stack.num_kv_heads
        for i, layer in enumerate(encoder.layers):
            view = views[stack.slides(i)]
            query, key, value = self._turned(stack, layer, x, view)
            key, value = (attention.entries(each, heads) for each in (key, value))
            h = attention.attend(
                self.ops, stack.num_heads, query, key, value, view.bias, stack.attention_softcap
            )
            x = self._with(x, h, layer.self_out, layer.self_post_norm)
            inner = self._feed_forward_of(stack, layer, x)
            x = self._with(x, inner, layer.wo, layer.mlp_post_norm)
        return self._normed(x, encoder.final_norm)

    def _cross_keys_values(self, params, output):
        split = super()._cross_keys_values(params, output)
        if not (self.config.merged_attention and self.config.query_key_norms):
            return split
        keys = [
            self._normed_heads(key, layer.key_norm)
            for key, layer in zip(split, params.layers, strict=False)  # Behind them the values.
        ]
        return [*keys, *split[len(keys) :]]

    def _cached_heads(self, batch: int) -> int:
        return (
            self.key_value_heads if self.config.merged_attention else super()._cached_heads(batch)
        )

    def _views(
        self, stack: Stack, seen: Bool[Array, "b t m"], positions: Int[Array, "b t"],
        entries: Int[Array, "b m"],
    ) -> dict[bool, View]:  # fmt: skip
        """Views of layers that see all, and of those that see a window."""
        found = {}
        for sliding in {stack.slides(i) for i in range(stack.num_layers)}:
            mask = seen
            if sliding and stack.window is not None:
                mask = seen & within(stack.window, positions, entries)
            bias = jnp.where(mask, 0.0, NEG_INF)[:, None]
            found[sliding] = View(bias, angles(stack.rope_of(sliding), stack.head_dim, positions))
        return found

    def _extend(self, params, encoded, cache, x, topology, after):
        cfg, length, max_len, count = self.config, cache.length, cache.keys[0].shape[2], x.shape[1]
        mask = kv.block_mask(topology, length, max_len, count, after)
        positions = kv.token_positions(topology, length, count, after)
        entries = kv.slot_positions(topology, length, max_len, after + count)
        views = self._views(cfg, mask, positions, entries)
        keys, values = [], []
        for i, (layer, *old) in enumerate(
            zip(params.layers, cache.keys, cache.values, strict=True)
        ):
            view = views[cfg.slides(i)]
            query, key, value = self._turned(cfg, layer, x, view)
            key, value = self._written(old, (key, value), length + after)
            keys.append(key)
            values.append(value)
            if encoded and cfg.merged_attention:
                h = self._attend_to_both(encoded, i, query, key, value, view.bias)
            else:
                h = self._attend(query, key, value, view.bias)
            x = self._with(x, h, layer.self_out, layer.self_post_norm)
            if encoded and not cfg.merged_attention:
                h = self._attend_to(encoded, layer, i, x)
                x = self._with(x, h, layer.cross_out, layer.cross_post_norm)
            inner = self._feed_forward_of(cfg, layer, x)
            x = self._with(x, inner, layer.wo, layer.mlp_post_norm)
        return x, kv.KVCache(tuple(keys), tuple(values), length)

    def _turned(
        self, stack: Stack, layer: PackedLayer, x: Float[Array, "b t d"], view: View
    ) -> tuple[Float[Array, "b t i"], Float[Array, "b t j"], Float[Array, "b t j"]]:
        """Queries and keys, turned by their positions, and values."""
        query, key, value = self._queries_keys_values(layer, x, stack)
        query, key = (
            turned(_heads(each, stack), view.by).reshape(each.shape) for each in (query, key)
        )
        return query * stack.query_scale, key, value

    def _joined_queries_keys_values(self, layer: PackedLayer, x: Float[Array, "b t d"]):
        return self._product_of_normed(x, layer.self_norm, layer.self_qkv)

    def _queries_keys_values(
        self, layer: PackedLayer, x: Float[Array, "b t d"], stack: Stack | None = None
    ) -> list[Float[Array, "b t i"]]:
        stack = stack or self.config
        joined = self._joined_queries_keys_values(layer, x)
        count = stack.num_heads // stack.num_kv_heads
        apart = self._split(joined, count + 2, "joined_kv")
        if layer.qkv_bias is not None:  # A mesh cuts joined kernels, but each bias for itself.
            apart = [each + bias for each, bias in zip(apart, layer.qkv_bias, strict=True)]
        *queries, key, value = apart
        query = queries[0]
        if count > 1:  # The heads of a key beside each other, as the output's kernel has them.
            query = jnp.stack([_heads(each, stack) for each in queries], axis=3)
            query = query.reshape(*x.shape[:2], -1)
        if layer.query_norm is not None:
            query = self._normed_heads(query, layer.query_norm)
            key = self._normed_heads(key, layer.key_norm)
        return [query, key, value]

    def _normed_heads(
        self, x: Float[Array, "b t i"], scale: Float[Array, " k"] | None
    ) -> Float[Array, "b t i"]:
        """Each head normalised for itself."""
        assert scale is not None
        return self._normed(x.reshape(*x.shape[:2], -1, len(scale)), scale).reshape(x.shape)

    def _attend(self, query, keys, values, bias) -> Float[Array, "b t i"]:
        cfg = self.config
        return attention.attend(
            self.ops, cfg.num_heads, query, keys, values, bias, cfg.attention_softcap
        )

    @property
    def _query_scale(self) -> float:
        return self.config.query_scale

    def _cross_query(self, layer: PackedLayer, x: Float[Array, "b t d"]) -> Float[Array, "b t i"]:
        assert layer.cross_query is not None
        return self._product_of_normed(x, layer.cross_norm, layer.cross_query)

    def _attend_to_both(self, encoded: EncodedInputs, i: int, query, key, value, bias):
        """Attention of layer i to own and encoder's entries, with one softmax."""
        cfg = self.config
        more = (encoded.keys[i], encoded.values[i], padding_bias(encoded))
        return attention.attend_to_both(
            self.ops, cfg.num_heads, query, (key, value, bias), more, cfg.attention_softcap
        )

    def _with(
        self, x: Float[Array, "b t d"], h: Float[Array, "b t i"], kernel: Kernel | None,
        norm: Float[Array, " d"] | None,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        """x + h kernel, which has a norm where there is one."""
        assert kernel is not None
        if norm is None:
            return self._added(x, h, kernel)
        part = self._normed(self.ops.product(kernel, h), norm)
        # Once in memory; else each norm would add up all that came before it again.
        return jax.lax.optimization_barrier(hidden(x + part))

    def _fuses(self, x: Float[Array, "b t d"], *others: Kernel) -> bool:
        """False: ``fused`` knows neither rotation nor shared keys."""
        del x, others
        return False

    def _normed(self, x: Float[Array, "b t d"], scale: Float[Array, " d"]) -> Float[Array, "b t d"]:
        """x / rms(x) times the norm's scale, in float32."""
        inverse = jax.lax.rsqrt(self.ops.mean_square(x) + self.config.layer_norm_epsilon)
        return (x * inverse * scale).astype(x.dtype)

    def _norm(self, scale: Float[Array, " d"]) -> fused.Norm:
        return fused.Norm(scale, None, self.config.layer_norm_epsilon)

    def _feed_forward_of(
        self, stack: Stack, layer: PackedLayer, x: Float[Array, "b t d"]
    ) -> Float[Array, "b t f"]:
        products = self._product_of_normed(x, layer.mlp_norm, layer.wi)
        gate, inner = self._split(products, 2, "mlp")
        return constrain(ACTIVATIONS[stack.activation](gate) * inner, MLP_AXES)

    def _embedded(self, params, tokens) -> Float[Array, "b t d"]:
        return self._scaled(self.config, super()._embedded(params, tokens))

    def _scaled(self, stack: Stack, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        scaled = self.config.scaled_embedding
        return hidden(x * embedding_scale(stack, x.dtype) if scaled else x)

    def _logits(self, params: PackedRotary, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return capped(self._logits_of_normed(params, x), self.config.logits_softcap)


def _heads(x: Float[Array, "b t i"], stack: Stack) -> Float[Array, "b t h k"]:
    """Heads on an axis of their own."""
    return x.reshape(*x.shape[:2], -1, stack.head_dim)
