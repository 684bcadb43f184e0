"""What one device of a mesh holds of a model, and what a call of its decoder costs that device.

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
from specdec.core.roofline import Collective, Load
from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import T5X_RULES, Axes, Partitioning
from specdec.models.products.quantized import num_bytes

# Axes that products sum over.
_SUMMED = ("joined_kv", "mlp")
_PLANNED = ("heads", *_SUMMED, "vocab")
_FLOAT32 = jnp.dtype("float32").itemsize


@dataclasses.dataclass(frozen=True)
class FewBits:
    """Weights of few bits, which no mesh cuts."""

    bits: int
    group: int  # In 4 bits; see :class:`specdec.drafters.quantized.Quantized`.
    # All of a model's; the decoder's alone, in a draft of its own; or in one that shares all else
    # with its target.
    what: Literal["model", "decoder", "of target"]


@dataclasses.dataclass(frozen=True)
class Beyond:
    """What a cache holds of positions that are behind all windows."""

    layers: int  # That see a window.
    needed: int  # Positions of a row that such a layer needs at most.
    unneeded: int  # Bytes of the others, in all these layers.


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Parameters on one device."""

    held: int  # Bytes.
    read: int  # Bytes of those that every call reads.
    num_read: int  # How many those are.


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
    read, itemsize = model.step_params(packed), jnp.dtype(config.dtype).itemsize

    def held(array: jax.ShapeDtypeStruct, axes: Axes) -> int:
        part = partitioning.sharding(axes).shard_shape(array.shape)
        return math.prod(part) * array.dtype.itemsize

    def total(arrays: Any) -> int:
        axes = model.packing.logical_axes(arrays)
        return sum(jax.tree.leaves(jax.tree.map(held, arrays, axes)))

    return _Weights(total(packed), total(read), total(read) // itemsize)


@functools.cache
def _few_bits(config: Config, few: FewBits) -> _Weights:
    full, model = _packed(config), decode_model(config, "in_out")
    of_target = few.what == "of target"

    def quantized(params: Any) -> Any:
        return model.quantized(params, few.bits, few.group, of_target=of_target)[1]

    packed = _packed(config, int8=True) if few.what == "model" else jax.eval_shape(quantized, full)
    own = (model.kernels(packed), packed.logits) if of_target else packed
    num_read = sum(leaf.size for leaf in jax.tree.leaves(model.step_params(full)))
    return _Weights(num_bytes(own), num_bytes(model.step_params(packed)), num_read)


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """One device's part of a model and of a batch.

    Raises:
      ValueError: the mesh does not divide the model or the batch.
    """

    config: Config  # The whole model's; its dtype is that of weights, activations and cache.
    partitioning: Partitioning  # How the model lies on the mesh.
    batch_size: int  # B, rows that all devices decode together.
    few_bits: FewBits | None = None  # None for weights of the config's dtype.

    def __post_init__(self):
        model = decode_model(self.config, "in_out", self.partitioning)  # Checks them.
        if self.few_bits is not None:
            model.check_whole()
        self.partitioning.check_batch_size(self.batch_size)

    @property
    def rows(self) -> int:
        """Of the batch, those that this device decodes."""
        return self.batch_size // self.partitioning.ways("batch")

    def cut_over(self, axis: str) -> str | None:
        """The mesh's axis, of several devices, that cuts a logical axis; None if it is whole."""
        return self.partitioning.onto(axis) if self.partitioning.ways(axis) > 1 else None

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

    @property
    def unplanned(self) -> list[str]:
        """Axes whose cut makes the compiler exchange more than :meth:`call` counts.

        Where d_model is cut by the data axis, for one, it gathers every kernel again in each call.
        """
        cut = {axis: self.cut_over(axis) for axis, _ in T5X_RULES}
        batch = cut.pop("batch")
        odd = [a for a, onto in cut.items() if onto and (a not in _PLANNED or onto == batch)]
        return odd + ["heads and joined_kv apart"] * (cut["heads"] != cut["joined_kv"])

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

    def beyond_windows(self, length: int, input_length: int, width: int, beams: int = 1) -> Beyond:
        """What of :meth:`self_cache` no layer that sees a window will read again.

        Args:
          width: tokens of a call, of which each has a window.
          beams: hypotheses of a row, of which each has its part of the ``length``.
        """
        model = decode_model(self.config, "in_out")
        total = length + (input_length if model.reads_prefix else 0)
        needed = [min(beams * (before + width), total) for before in model.windows]
        one = self.cache(1) // self.config.num_decoder_layers
        return Beyond(len(needed), max(needed, default=total), sum(total - n for n in needed) * one)

    def own_cross_cache(self, length: int) -> int:
        """Bytes of the cross-attention's, unless they are the target's; 0 without an encoder."""
        if not self._has_encoder:
            return 0
        shared = self.few_bits is not None and self.few_bits.what == "of target"
        return 0 if shared else self.cache(length)

    def logits(self, width: int) -> int:
        """Bytes of one call's logits, [B, T, V] in float32: gathered, so that V is whole."""
        return self.rows * width * self.config.vocab_size * _FLOAT32

    def call(
        self, width: int, cache_length: int, input_length: int, scored: int | None = None
    ) -> Load:
        """One call of the decoder.

        Weights and both caches are read once, whole: what a cache does not hold yet is masked.
        Activations and logits may stay on the chip and are not counted.

        Args:
          width: T.
          cache_length, input_length: M and S.
          scored: of how many of the T tokens logits are made; None for all.

        Raises:
          ValueError: an axis is cut in a way that is :attr:`unplanned`.
        """
        if self.unplanned:
            raise ValueError(
                "Collectives are counted where one axis of the mesh cuts the batch, and the other "
                f"heads, joined_kv, mlp and vocab; these rules cut {', '.join(self.unplanned)}."
            )
        caches = self.self_cache(cache_length, input_length)
        caches += self.cache(input_length) if self._has_encoder else 0
        scored = width if scored is None else scored
        weights = self._weights.num_read * self.rows * width
        vocabulary = self.config.vocab_size // self.partitioning.ways("vocab")
        weights -= self.config.d_model * vocabulary * self.rows * (width - scored)
        # Several heads of queries may share an entry.
        model = decode_model(self.config, "in_out")
        sharing = self.config.num_heads // model.key_value_heads
        attention = caches // self._itemsize * width * sharing
        return Load(
            read=self.step_weights + caches,
            operations=2 * (weights + attention),  # A multiplication and an addition each.
            collectives=self._collectives(width, scored),
        )

    def _collectives(self, width: int, scored: int) -> tuple[Collective, ...]:
        """Sums of what devices computed of a product, and the parts of the logits put together."""
        cfg, tokens = self.config, self.rows * width
        # By the axis they sum over: each attention's last product, and the mlp's.
        model, packed = decode_model(cfg, "in_out"), _packed(cfg)
        axes = model.packing.logical_axes(packed.layers)
        summed = [
            getattr(layer, name)[0]
            for layer, kernels in zip(axes, model.kernels(packed), strict=True)
            for name in kernels
        ]
        counts = {axis: summed.count(axis) for axis in _SUMMED}
        counts["vocab"] = 1  # Each token's embedding is on one device; the others add zeros.
        sums: dict[str, int] = {}
        for axis, count in counts.items():
            if onto := self.cut_over(axis):
                sums[onto] = sums.get(onto, 0) + count
        devices = self.partitioning.mesh.shape
        hidden = tokens * cfg.d_model * self._itemsize
        found = [
            Collective("all-reduce", onto, devices[onto], hidden, count)
            for onto, count in sums.items()
        ]
        if onto := self.cut_over("vocab"):
            found.append(Collective("all-gather", onto, devices[onto], self.logits(scored), 1))
        return tuple(found)

    @property
    def _itemsize(self) -> int:
        return jnp.dtype(self.config.dtype).itemsize
