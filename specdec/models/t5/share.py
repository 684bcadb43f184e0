"""What one device of a mesh holds of a T5, and what a call of its decoder costs that device.

From shapes and rules alone: neither weights nor devices are needed. All devices have equal shares.

Shapes: B batch, S input length, T tokens of one call, M cache length, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from specdec.core.roofline import Collective, Work
from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import Axes, Partitioning
from specdec.models.t5 import packing
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.network import init_params
from specdec.models.t5.packing import PackedT5

# Axes that products sum over, and how many of a decoder layer's products do.
_SUMMED = {"joined_kv": 2, "mlp": 1}
_FLOAT32 = jnp.dtype("float32").itemsize


@functools.cache
def _packed(config: T5Config) -> PackedT5:
    """The shapes of a model's decode parameters, all devices' together."""
    model = T5Model(config, "in_out")
    return jax.eval_shape(lambda: model.pack(init_params(config, jax.random.key(0))))


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """One device's part of a model and of a batch.

    Attributes:
      config: the whole model's; its dtype is that of weights, activations and cache.
      partitioning: how the model lies on the mesh.
      batch_size: B, rows that all devices decode together.

    Raises:
      ValueError: the mesh does not divide the model or the batch.
    """

    config: T5Config
    partitioning: Partitioning
    batch_size: int

    def __post_init__(self):
        T5Model(self.config, "in_out", partitioning=self.partitioning)  # Checks them.
        self.partitioning.check_batch_size(self.batch_size)

    @property
    def rows(self) -> int:
        """Of the batch, those that this device decodes."""
        return self.batch_size // self.partitioning.ways("batch")

    @functools.cached_property
    def weights(self) -> int:
        """Bytes of all parameters, packed for decoding."""
        packed = _packed(self.config)
        return self._held(packed, packing.logical_axes(packed, self.config))

    @functools.cached_property
    def step_weights(self) -> int:
        """Bytes of those that every call reads.

        Not the encoder's and the cross-attention's keys' and values', which are read once a text,
        nor the embedding but for a few rows, unless it is the logits' kernel too.
        """
        packed = _packed(self.config)
        read = dataclasses.replace(
            packed,
            encoder={},
            cross_kv=None,
            embedding=packed.embedding if self.config.tied_logits else None,
        )
        return self._held(read, packing.logical_axes(read, self.config))

    def cache(self, length: int) -> int:
        """Bytes of the keys and values of ``length`` positions a row, in all layers."""
        cfg = self.config
        shape = (self.batch_size, cfg.num_heads, length, cfg.head_dim)
        return 2 * cfg.num_decoder_layers * self._size(shape, CACHE_AXES) * self._itemsize

    def logits(self, width: int) -> int:
        """Bytes of one call's logits, [B, T, V] in float32: gathered, so that V is whole."""
        return self.rows * width * self.config.vocab_size * _FLOAT32

    def call(self, width: int, cache_length: int, input_length: int) -> Work:
        """One call of the decoder.

        Weights and both caches are read once, whole: what a cache does not hold yet is masked.
        Activations and logits may stay on the chip and are not counted.

        Args:
          width: T.
          cache_length, input_length: M and S.
        """
        caches = self.cache(cache_length) + self.cache(input_length)
        weights = self.step_weights // self._itemsize * self.rows * width
        attention = caches // self._itemsize * width
        return Work(
            read=self.step_weights + caches,
            operations=2 * (weights + attention),  # A multiplication and an addition each.
            collectives=self._collectives(width),
        )

    def _collectives(self, width: int) -> tuple[Collective, ...]:
        """Sums of what devices computed of a product, and the parts of the logits put together."""
        cfg, tokens = self.config, self.rows * width
        counts = {axis: n * cfg.num_decoder_layers for axis, n in _SUMMED.items()}
        counts["vocab"] = 1  # Each token's embedding is on one device; the others add zeros.
        sums: dict[str, int] = {}
        for axis, count in counts.items():
            if self.partitioning.ways(axis) > 1:
                onto = self.partitioning.onto(axis)
                sums[onto] = sums.get(onto, 0) + count
        found = [
            self._collective("all-reduce", onto, tokens * cfg.d_model * self._itemsize, count)
            for onto, count in sums.items()
        ]
        if self.partitioning.ways("vocab") > 1:
            onto = self.partitioning.onto("vocab")
            found.append(self._collective("all-gather", onto, self.logits(width), 1))
        return tuple(found)

    def _collective(self, kind, onto: str, size: int, count: int) -> Collective:
        return Collective(kind, onto, self.partitioning.mesh.shape[onto], size, count)

    @property
    def _itemsize(self) -> int:
        return jnp.dtype(self.config.dtype).itemsize

    def _size(self, shape: tuple[int, ...], axes: Axes) -> int:
        return math.prod(self.partitioning.sharding(axes).shard_shape(shape))

    def _held(self, arrays, axes) -> int:
        """Bytes on this device of a tree of arrays with these logical axes."""
        parts = jax.tree.map(
            lambda array, names: self._size(array.shape, names) * array.dtype.itemsize, arrays, axes
        )
        return sum(jax.tree.leaves(parts))
