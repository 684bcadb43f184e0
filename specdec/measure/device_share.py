"""One device's share of a model on a mesh: what it holds, and the weights each step reads.

From shapes and rules alone: neither weights nor devices are needed. All devices have equal shares.

Shapes: B batch, S input length, T tokens of one call, M cache length, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from specdec.checkpoints.architectures import Config, decode_model, parameter_shapes
from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import Axes, Partitioning
from specdec.models.products.quantized import num_bytes

_FLOAT32 = jnp.dtype("float32").itemsize


@dataclasses.dataclass(frozen=True)
class Quantization:
    """Weights of few bits, which no mesh cuts."""

    bits: int
    group: int  # In 4 bits; see :class:`specdec.drafters.quantized.Quantized`.
    # All of a model's; the decoder's alone, in a draft of its own; or in one that shares all else
    # with its target.
    what: Literal["model", "decoder", "of target"]


@dataclasses.dataclass(frozen=True)
class UnusedCache:
    """The part of a cache for positions that are behind all windows."""

    layers: int  # Layers that see a window.
    needed: int  # Positions of a row that such a layer needs at most.
    unneeded: int  # Bytes of the others, in all these layers.


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Parameters on one device."""

    held: int  # Bytes.
    read: int  # Bytes of those that every call reads.


@functools.cache
def _packed(config: Config, *, int8: bool = False) -> Any:
    """The shapes of a model's decode parameters, all devices' together."""
    shapes = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32)
        for path, shape in parameter_shapes(config).items()
    }
    pack = functools.partial(decode_model(config, "in_out").pack, int8=int8)
    return jax.eval_shape(pack, unflatten_dict(shapes, sep="/"))


@functools.cache
def _weights(config: Config, partitioning: Partitioning) -> _Weights:
    packed, model = _packed(config), decode_model(config, "in_out")
    read = model.step_params(packed)

    def held(array: jax.ShapeDtypeStruct, axes: Axes) -> int:
        part = partitioning.sharding(axes).shard_shape(array.shape)
        return math.prod(part) * array.dtype.itemsize

    def total(arrays: Any) -> int:
        axes = model.logical_axes(arrays)
        return sum(jax.tree.leaves(jax.tree.map(held, arrays, axes)))

    return _Weights(total(packed), total(read))


@functools.cache
def _few_bits(config: Config, few: Quantization) -> _Weights:
    full, model = _packed(config), decode_model(config, "in_out")
    of_target = few.what == "of target"

    def quantized(params: Any) -> Any:
        return model.quantized(params, few.bits, few.group, of_target=of_target)[1]

    packed = _packed(config, int8=True) if few.what == "model" else jax.eval_shape(quantized, full)
    own = (model.kernels(packed), packed.logits) if of_target else packed
    return _Weights(num_bytes(own), num_bytes(model.step_params(packed)))


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """One device's part of a model and of a batch.

    Raises:
      ValueError: the mesh does not divide the model or the batch.
    """

    config: Config  # The whole model's; its dtype is that of weights, activations and cache.
    partitioning: Partitioning  # How the model lies on the mesh.
    batch_size: int  # B, rows that all devices decode together.
    few_bits: Quantization | None = None  # None for weights of the config's dtype.

    def __post_init__(self):
        model = decode_model(self.config, "in_out", self.partitioning)  # Checks them.
        if self.few_bits is not None:
            model.check_whole()
        self.partitioning.check_batch_size(self.batch_size)

    @property
    def rows(self) -> int:
        """Rows of the batch that this device decodes."""
        return self.batch_size // self.partitioning.ways("batch")

    @property
    def _weights(self) -> _Weights:
        if self.few_bits is None:
            return _weights(self.config, self.partitioning)
        return _few_bits(self.config, self.few_bits)

    @property
    def weights(self) -> int:
        """Bytes of all parameters, packed for decoding, but for those that a target has too."""
        return self._weights.held

    @property
    def step_weights(self) -> int:
        """Bytes of those that every call reads.

        Not the encoder's and the cross-attention's keys' and values', which are read once a text,
        nor the embedding but for a few rows, unless it is the logits' kernel too.
        """
        return self._weights.read

    def cache(self, length: int) -> int:
        """Bytes of the keys and values of ``length`` positions a row, in all layers."""
        cfg = self.config
        heads = decode_model(cfg, "in_out").key_value_heads
        shape = (self.batch_size, heads, length, cfg.head_dim)
        held = math.prod(self.partitioning.sharding(CACHE_AXES).shard_shape(shape))
        return 2 * cfg.num_decoder_layers * held * self._itemsize

    @property
    def _has_encoder(self) -> bool:
        return not decode_model(self.config, "in_out").reads_prefix

    def self_cache(self, length: int, input_length: int) -> int:
        """Bytes of the self-attention's, which holds the inputs of a model without an encoder."""
        return self.cache(length + (0 if self._has_encoder else input_length))

    def beyond_windows(
        self, length: int, input_length: int, width: int, beams: int = 1
    ) -> UnusedCache:
        """The part of :meth:`self_cache` that no layer with a window will read again.

        Args:
          width: tokens of a call, of which each has a window.
          beams: hypotheses of a row, of which each has its part of the ``length``.
        """
        model = decode_model(self.config, "in_out")
        total = length + (input_length if model.reads_prefix else 0)
        needed = [min(beams * (before + width), total) for before in model.windows]
        one = self.cache(1) // self.config.num_decoder_layers
        return UnusedCache(
            len(needed), max(needed, default=total), sum(total - n for n in needed) * one
        )

    def own_cross_cache(self, length: int) -> int:
        """Bytes of the cross-attention's, unless they are the target's; 0 without an encoder."""
        if not self._has_encoder:
            return 0
        shared = self.few_bits is not None and self.few_bits.what == "of target"
        return 0 if shared else self.cache(length)

    def logits(self, width: int) -> int:
        """Bytes of one call's logits, [B, T, V] in float32: gathered, so that V is whole."""
        return self.rows * width * self.config.vocab_size * _FLOAT32

    @property
    def _itemsize(self) -> int:
        return jnp.dtype(self.config.dtype).itemsize
