"""Memory that a decode needs on each device, from the shapes of its models alone.

Neither weights nor devices are needed. All devices of a mesh have equal shares.

Shapes: B batch, T tokens of one call, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.architectures import Config, decode_model, parameter_shapes
from specdec.core.nested import nested
from specdec.drafters.shape import Tree
from specdec.models.cache import CACHE_AXES
from specdec.models.partitioning import Axes, DeviceMesh, Partitioning
from specdec.models.products.quantized import num_bytes

_FLOAT32 = jnp.dtype("float32").itemsize
_PENDING = 2  # Tokens that the first draft call of a block always feeds.


@dataclasses.dataclass(frozen=True)
class Quantization:
    """Weights of few bits, which no mesh cuts."""

    bits: int
    group: int  # In 4 bits; see :class:`specdec.drafters.quantized.Quantized`.
    # All of a model's; the decoder's alone, in a draft of its own; or in one that shares all else
    # with its target.
    what: Literal["model", "decoder", "of target"]


@functools.cache
def _packed(config: Config, *, int8: bool = False) -> Any:
    """The shapes of a model's decode parameters, all devices' together."""
    shapes = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32)
        for path, shape in parameter_shapes(config).items()
    }
    pack = functools.partial(decode_model(config, "in_out").pack, int8=int8)
    return jax.eval_shape(pack, nested(shapes))


@functools.cache
def _weights(
    config: Config, partitioning: Partitioning, few: Quantization | None, has_encoder: bool
) -> tuple[int, int]:
    """Bytes on one device of all parameters, and of those that every call reads."""
    model = decode_model(config, "in_out")
    if few is not None:
        of_target = few.what == "of target"
        packed = _packed(config, int8=few.what == "model")
        if few.what != "model":
            quantized = functools.partial(model.quantized, of_target=of_target)
            packed = jax.eval_shape(
                lambda params: quantized(params, few.bits, few.group)[1], packed
            )
        own = (model.kernels(packed), packed.logits) if of_target else packed
        return num_bytes(own), num_bytes(model.step_params(packed))

    def held(array: jax.ShapeDtypeStruct, axes: Axes) -> int:
        part = partitioning.sharding(axes).shard_shape(array.shape)
        return math.prod(part) * array.dtype.itemsize

    def total(arrays: Any) -> int:
        return sum(jax.tree.leaves(jax.tree.map(held, arrays, model.logical_axes(arrays))))

    packed = _packed(config)
    if not has_encoder:
        packed = dataclasses.replace(packed, encoder=None)
    return total(packed), total(model.step_params(packed))


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
    has_encoder: bool = True  # A draft that listens with its target's has none.

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
    def weights(self) -> int:
        """Bytes of all parameters, packed for decoding, but for those that a target has too."""
        return self._weights[0]

    @property
    def step_weights(self) -> int:
        """Bytes of those that every call reads.

        Not the encoder's and the cross-attention's keys' and values', which are read once a text,
        nor the embedding but for a few rows, unless it is the logits' kernel too.
        """
        return self._weights[1]

    @property
    def _weights(self) -> tuple[int, int]:
        return _weights(self.config, self.partitioning, self.few_bits, self.has_encoder)

    def cache(self, length: int) -> int:
        """Bytes of the keys and values of ``length`` positions a row, in all layers."""
        cfg = self.config
        shape = (self.batch_size, cfg.decoder.kv_heads, length, cfg.head_dim)
        held = math.prod(self.partitioning.sharding(CACHE_AXES).shard_shape(shape))
        return 2 * cfg.num_decoder_layers * held * jnp.dtype(cfg.dtype).itemsize

    def self_cache(self, length: int, input_length: int) -> int:
        """Bytes of the self-attention's, which holds the inputs of a model without an encoder."""
        reads_prefix = decode_model(self.config, "in_out").reads_prefix
        return self.cache(length + (input_length if reads_prefix else 0))

    def own_cross_cache(self, length: int) -> int:
        """Bytes of the cross-attention's, unless they are the target's; 0 without an encoder."""
        shared = self.few_bits is not None and self.few_bits.what == "of target"
        return (
            0 if shared or decode_model(self.config, "in_out").reads_prefix else self.cache(length)
        )

    def logits(self, width: int) -> int:
        """Bytes of one call's logits, [B, T, V] in float32: gathered, so that V is whole."""
        return self.rows * width * self.config.vocab_size * _FLOAT32


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """A pair on a mesh.

    Raises:
      ValueError: the mesh does not divide a model or the batch (when it is asked for a share).
    """

    # The models' shapes; no draft if it is no model, which costs nothing here.
    target: Config
    draft: Config | None
    # Of how many devices, and how the models are cut. No device needs to be there.
    mesh: DeviceMesh
    batch_size: int  # Rows decoded together, on all devices.
    gamma: int  # Guesses in a row, the levels of a tree; 0 for plain decoding.
    # S and L, the buckets.
    input_len: int
    output_len: int
    # None for weights of the models' dtypes.
    target_bits: Quantization | None = None
    draft_bits: Quantization | None = None
    tree: Tree | None = None  # None for chains.

    def held(self) -> list[dict[str, int]]:
        """Bytes that a device holds of the target, and of the draft if it is a model, by part."""
        nodes, fed = self.gamma if self.tree is None else self.tree.size, self._fed
        cached = draft_cached = self.output_len + nodes + 1
        if self.tree is not None:  # Whose leaves the draft never reads.
            draft_cached = self.output_len + sum(fed) + 1 + _PENDING
        sizes = ((cached, nodes + 1), (draft_cached, max([_PENDING, *fed])))
        return [
            {"all parameters": share.weights,
             "self-attention cache": share.self_cache(capacity, self.input_len),
             "cross-attention keys and values": share.own_cross_cache(self.input_len),
             "logits of one call": share.logits(width)}
            for share, (capacity, width) in zip(self._shares(), sizes, strict=False)
        ]  # fmt: skip

    @property
    def needed(self) -> int:
        """Bytes that each device holds of both."""
        return sum(sum(held.values()) for held in self.held())

    def read(self) -> list[int]:
        """Bytes of each model's weights that a device reads in each decode step."""
        return [share.step_weights for share in self._shares()]

    def fitting_mesh(self, memory: float) -> DeviceMesh | None:
        """This mesh with the shortest model axis on which each device holds at most ``memory``.

        None if there is none.
        """
        sides = ((self.mesh.planned_target, self.target), (self.mesh.planned_draft, self.draft))
        cut = [
            size
            for rules, config in sides
            if config is not None
            for axis, sizes in decode_model(config, "in_out").axis_sizes.items()
            if rules.onto(axis) == "model"
            for size in sizes.values()
        ]
        longest = math.gcd(*cut) or 1
        for model in range(1, longest + 1):
            mesh = dataclasses.replace(self.mesh, model=model)
            if longest % model == 0 and dataclasses.replace(self, mesh=mesh).needed <= memory:
                return mesh
        return None

    def _shares(self) -> Iterator[DeviceShare]:
        target, few = self.mesh.planned_target, self.draft_bits
        yield DeviceShare(self.target, target, self.batch_size, self.target_bits)
        if self.draft is not None:
            of_target = few is not None and few.what == "of target"
            rules = target if of_target else self.mesh.planned_draft
            one = self.mesh.data * self.mesh.model == 1
            own = few is not None or not (one and self.target.listens_as(self.draft))
            yield DeviceShare(self.draft, rules, self.batch_size, few, own)

    @property
    def _fed(self) -> list[int]:
        """Guesses that each draft call after the first takes: of a tree, a level's inner nodes."""
        if self.tree is None:
            return [1] * (self.gamma - 1)
        topology = self.tree.topology
        if topology is None:
            return [self.tree.most_siblings] * (self.gamma - 1)
        inner = sorted(set(topology.parents) - {-1})
        return np.bincount(topology.depths()[inner]).tolist()
