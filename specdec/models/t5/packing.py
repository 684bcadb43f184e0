"""A T5's decode parameters: a checkpoint's, fused and stored as a decode step reads them.

A step is bound by reading the weights once, so query, key and value become one product, wi_0 and
wi_1 another, and every layer's cross-attention K/V a third. The encoder is fused alike. Weights
that a checkpoint stores in 16 bits keep them: nothing is multiplied into a kernel.

Shapes: H heads, I = H * head_dim, D d_model, F d_ff, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.models.partitioning import Axes, Partitioning, ways
from specdec.models.placing import place
from specdec.models.products.quantized import Kernel
from specdec.models.stores import Store, at_most, pack_logits
from specdec.models.t5.config import T5Config
from specdec.types import Params

# What of a layer are kernels; the rest are scales of norms.
LAYER_KERNELS = ("self_qkv", "self_out", "wi", "wo", "cross_query", "cross_out")


@pytree
class PackedLayer:
    """One layer; kernels in the model's layout, norms' scales [D] in the activations' dtype.

    An encoder's has no cross-attention.
    """

    self_norm: Float[Array, " d"]
    self_qkv: Kernel  # D -> 3I
    self_out: Kernel  # I -> D
    mlp_norm: Float[Array, " d"]
    wi: Kernel  # D -> F, or 2F when gated
    wo: Kernel  # F -> D
    cross_norm: Float[Array, " d"] | None = None
    cross_query: Kernel | None = None  # D -> I
    cross_out: Kernel | None = None  # I -> D
    relpos: Float[Array, "h r"] | None = None  # Position biases, where each layer has its own.


@pytree
class PackedEncoder:
    """An encoder without its embedding."""

    layers: tuple[PackedLayer, ...]
    # Position biases of each bucket; None without layers, or where these have their own.
    relpos: Float[Array, "h r"] | None
    final_norm: Float[Array, " d"]
    # W -> D, for a draft that starts from its target's encoding of width W.
    input_projection: Kernel | None


@pytree
class PackedT5:
    """Decode parameters; those of no other part are the decoder's.

    A draft that starts from what its target made of the inputs has no encoder and no cross_kv.
    """

    encoder: PackedEncoder | None
    embedding: Kernel  # [V, D]; shared with the logits when they are tied.
    cross_kv: Kernel | None  # D -> 2 * layers * I, every layer's cross-attention keys and values.
    layers: tuple[PackedLayer, ...]
    relpos: Float[Array, "h r"] | None  # Position biases; None where layers have their own.
    final_norm: Float[Array, " d"]
    logits: Kernel | None  # D -> V, or N output tokens; None when they are the embedding's.
    output_tokens: Int[Array, " n"] | None = None  # What logits are of, in order; None for all.


# Logical axes.
AXES: dict[str, Axes] = {
    **dict.fromkeys(("self_qkv", "cross_query", "cross_kv"), ("embed", "joined_kv")),
    **dict.fromkeys(("self_out", "cross_out"), ("joined_kv", "embed")),
    "wi": ("embed", "mlp"),
    "wo": ("mlp", "embed"),
    "embedding": ("vocab", "embed"),
    "relpos": ("heads", "relpos_buckets"),
    **dict.fromkeys(("self_norm", "cross_norm", "mlp_norm", "final_norm"), ("embed",)),
    "logits": ("embed", "vocab"),
    "input_projection": ("encoding", "embed"),
}


def logical_axes(packed: PackedT5) -> PackedT5:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""
    return jax.tree_util.tree_map_with_path(lambda path, _: AXES[path[-1].name], packed)


@dataclasses.dataclass(frozen=True)
class Packer:
    """Packs the parts of a checkpoint tree (T5X's names; kernels [in, out]).

    Every parameter is read, placed and fused on its own: little memory is needed beside the
    result's, and on a mesh no device ever holds more than its own part. Kernels and embedding have
    ``config.dtype``, or keep one of fewer bits that they come in; other parameters have that dtype.

    Attributes:
      narrow: what decoder kernels and embedding of more bits are stored in; None to keep them.
      partitioning: None for one device.
    """

    config: T5Config
    store: Store
    narrow: jnp.dtype | None
    partitioning: Partitioning | None

    @property
    def dtype(self) -> jnp.dtype:
        """Of what is not stored in fewer bits."""
        return jnp.dtype(self.config.dtype)

    def put(self, array: Any, axes: Axes) -> Array:
        """On its devices."""
        return place(array, axes, self.partitioning)

    def stored(self, array: Array) -> Array:
        """A decoder's kernel or the embedding, in its own bits or fewer."""
        return at_most(self.narrow or self.dtype, array)

    def decoder(self, name: str, *kernels: Any) -> Kernel:
        """Kernels as one, which is read at every step."""
        return self.store.kernel(self.stored(self._fused(name, kernels)))

    def encoder(self, name: str, *kernels: Any) -> Kernel:
        """Kernels as one, which is read once a text."""
        return self.store.whole(at_most(self.dtype, self._fused(name, kernels)))

    def _fused(self, name, kernels):
        axes = AXES[name]
        fused = [self.put(kernel["kernel"], axes) for kernel in kernels]
        if len(fused) == 1:
            return fused[0]
        return self.put(self.store.joined(fused, ways(self.partitioning, axes[1])), axes)

    def norm(self, name: str, parameters: Any) -> Float[Array, " d"]:
        """The scale of one: with its dtype's rounding, but wide, as it is multiplied."""
        scale = self.put(parameters["scale"], AXES[name]).astype(self.dtype)
        return scale.astype(jnp.promote_types(self.dtype, jnp.float32))

    def relpos(self, parameters: Any) -> Float[Array, "h r"] | None:
        """Position biases of a stack or a layer, if it has some."""
        if "relpos_bias" not in parameters:
            return None
        biases = parameters["relpos_bias"]["rel_embedding"]
        return self.put(biases, AXES["relpos"]).astype(jnp.float32)

    def layer(self, layer: Any, fuse: Callable[..., Kernel]) -> PackedLayer:
        """One layer; only some have cross-attention."""
        attention = "self_attention" if "self_attention" in layer else "attention"
        own, mlp = layer[attention], layer["mlp"]
        wi = ("wi_0", "wi_1") if self.config.gated else ("wi",)
        packed = PackedLayer(
            self_norm=self.norm("self_norm", layer[f"pre_{attention}_layer_norm"]),
            self_qkv=fuse("self_qkv", *(own[name] for name in ("query", "key", "value"))),
            self_out=fuse("self_out", own["out"]),
            mlp_norm=self.norm("mlp_norm", layer["pre_mlp_layer_norm"]),
            wi=fuse("wi", *(mlp[name] for name in wi)),
            wo=fuse("wo", mlp["wo"]),
            relpos=self.relpos(layer),
        )
        if "encoder_decoder_attention" not in layer:
            return packed
        cross = layer["encoder_decoder_attention"]
        return dataclasses.replace(
            packed,
            cross_norm=self.norm("cross_norm", layer["pre_cross_attention_layer_norm"]),
            cross_query=fuse("cross_query", cross["query"]),
            cross_out=fuse("cross_out", cross["out"]),
        )

    def stack(
        self, name: str, parameters: Any, count: int, fuse: Callable[..., Kernel]
    ) -> dict[str, Any]:
        """What encoder and decoder both have: ``layers``, ``relpos`` and ``final_norm``."""
        layers = (parameters[f"layers_{i}"] for i in range(count))
        return {
            "layers": tuple(self.layer(layer, fuse) for layer in layers),
            "relpos": self.relpos(parameters),
            "final_norm": self.norm("final_norm", parameters[f"{name}_norm"]),
        }

    def cross_kv(self, parameters: Any) -> Kernel:
        """Of all the decoder's layers."""
        count = self.config.num_decoder_layers
        layers = [parameters[f"layers_{i}"]["encoder_decoder_attention"] for i in range(count)]
        return self.encoder(
            "cross_kv", *(layer["key"] for layer in layers), *(layer["value"] for layer in layers)
        )


def pack(
    params: Params, config: T5Config, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedT5:  # fmt: skip
    """Decode parameters from a checkpoint tree; see :class:`Packer`.

    Args:
      output_tokens: those that the model is to generate; None for all.
    """
    packer = Packer(config, store, narrow, partitioning)
    # The large ones first, while little else is in memory: packing needs a copy.
    embedding = packer.stored(packer.put(params["token_embedder"]["embedding"], AXES["embedding"]))
    logits, generated = pack_logits(params, config, store, narrow, partitioning, output_tokens)
    cross_kv = packer.cross_kv(params["decoder"])
    projection = None
    if config.encoding_width is not None:
        projection = packer.encoder("input_projection", params["encoder"]["input_projection"])
    count = config.num_encoder_layers
    encoder = packer.stack("encoder", params["encoder"], count, packer.encoder)
    count = config.num_decoder_layers
    decoder = packer.stack("decoder", params["decoder"], count, packer.decoder)
    return PackedT5(
        PackedEncoder(**encoder, input_projection=projection), store.embedding(embedding),
        cross_kv, **decoder, logits=logits, output_tokens=generated,
    )  # fmt: skip
