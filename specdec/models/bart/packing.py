"""Decode parameters of BART and its kin: a checkpoint's, stored as a decode step reads them.

As a T5's, with biases. Each part has the norm before it: where norms are after parts, that is the
one after the part before.

Shapes: D d_model, F d_ff, V vocabulary, P positions, L layers of the decoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.models.bart.config import BartConfig
from specdec.models.bart.network import sinusoids
from specdec.models.layer_normed import Norm
from specdec.models.partitioning import Axes, Partitioning, ways
from specdec.models.placing import place
from specdec.models.products.quantized import Kernel
from specdec.models.stores import Store, at_most, pack_logits
from specdec.types import Params

# What of a layer are kernels; the rest are norms and biases.
LAYER_KERNELS = ("self_qkv", "self_out", "wi", "wo", "cross_query", "cross_out")


@pytree
class PackedLayer:
    """One layer; kernels in the model's layout, norms and biases in the activations' dtype.

    An encoder's has no cross-attention.
    """

    self_norm: Norm | None  # None where nothing is normalised before the first part.
    self_qkv: Kernel  # D -> 3D
    qkv_bias: Float[Array, "3 d"]
    self_out: Kernel  # D -> D
    out_bias: Float[Array, " d"]
    mlp_norm: Norm
    wi: Kernel  # D -> F
    wi_bias: Float[Array, " f"]
    wo: Kernel  # F -> D
    wo_bias: Float[Array, " d"]
    cross_norm: Norm | None = None
    cross_query: Kernel | None = None  # D -> D
    query_bias: Float[Array, " d"] | None = None
    cross_out: Kernel | None = None  # D -> D
    cross_bias: Float[Array, " d"] | None = None


@pytree
class PackedEncoder:
    """An encoder; without its embedding where it has the decoder's."""

    embedding: Kernel | None
    positions: Float[Array, "p d"]
    embedding_norm: Norm | None
    layers: tuple[PackedLayer, ...]
    final_norm: Norm


@pytree
class PackedBart:
    """Decode parameters; those of no other part are the decoder's.

    A draft that starts from what its target made of the inputs has no encoder and no cross_kv.
    """

    encoder: PackedEncoder | None
    embedding: Kernel  # [V, D]; shared with the logits when they are tied.
    positions: Float[Array, "p d"]
    embedding_norm: Norm | None
    cross_kv: Kernel | None  # D -> 2LD, every layer's cross-attention keys and values.
    kv_bias: Float[Array, "2l d"] | None
    layers: tuple[PackedLayer, ...]
    final_norm: Norm
    logits: Kernel | None  # D -> V, or N output tokens; None when they are the embedding's.
    logits_bias: Float[Array, " v"] | None  # Or of N output tokens.
    output_tokens: Int[Array, " n"] | None = None  # What logits are of, in order; None for all.


# Logical axes.
AXES: dict[str, Axes] = {
    **dict.fromkeys(("self_qkv", "cross_query", "cross_kv"), ("embed", "joined_kv")),
    **dict.fromkeys(("qkv_bias", "kv_bias"), ("stack", "joined_kv")),
    "query_bias": ("joined_kv",),
    **dict.fromkeys(("self_out", "cross_out"), ("joined_kv", "embed")),
    "wi": ("embed", "mlp"),
    "wi_bias": ("mlp",),
    "wo": ("mlp", "embed"),
    "embedding": ("vocab", "embed"),
    "positions": ("length", "embed"),
    **dict.fromkeys(("norm_scale", "norm_bias"), ("embed",)),
    **dict.fromkeys(("out_bias", "cross_bias", "wo_bias"), ("embed",)),
    "logits": ("embed", "vocab"),
    "logits_bias": ("vocab",),
    "output_tokens": (None,),
}


def logical_axes(packed: PackedBart) -> PackedBart:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""
    return jax.tree_util.tree_map_with_path(lambda path, _: AXES[path[-1].name], packed)


@dataclasses.dataclass(frozen=True)
class _Packer:
    """Packs the parts of a checkpoint tree; see :class:`specdec.models.t5.packing.Packer`."""

    config: BartConfig
    store: Store
    narrow: jnp.dtype | None
    partitioning: Partitioning | None

    @property
    def dtype(self) -> jnp.dtype:
        """Of what is not stored in fewer bits."""
        return jnp.dtype(self.config.dtype)

    def put(self, name: str, array: Any) -> Array:
        """On its devices."""
        return place(array, AXES[name], self.partitioning)

    def vector(self, name: str, array: Any) -> Array:
        """A bias, or a table of positions."""
        return self.put(name, array).astype(self.dtype)

    def stacked(self, name: str, parts: Sequence[Any]) -> Array:
        """Biases of joined kernels, one below the other."""
        return self.vector(
            name, jnp.stack([self.put("query_bias", part["bias"]) for part in parts])
        )

    def norm(self, parameters: Any) -> Norm:
        """A LayerNorm's."""
        scale = self.vector("norm_scale", parameters["scale"])
        return Norm(scale, self.vector("norm_bias", parameters["bias"]))

    def embedding(self, parameters: Any) -> Kernel:
        """A table [V, D]."""
        table = self.put("embedding", parameters["embedding"])
        return self.store.embedding(at_most(self.narrow or self.dtype, table))

    def decoder(self, name: str, *parts: Any) -> Kernel:
        """Kernels as one, which is read at every step."""
        return self.store.kernel(at_most(self.narrow or self.dtype, self._joined(name, parts)))

    def encoder(self, name: str, *parts: Any) -> Kernel:
        """Kernels as one, which is read once a text."""
        return self.store.whole(at_most(self.dtype, self._joined(name, parts)))

    def _joined(self, name: str, parts: Sequence[Any]) -> Array:
        kernels = [self.put(name, part["kernel"]) for part in parts]
        if len(kernels) == 1:
            return kernels[0]
        count = ways(self.partitioning, AXES[name][1])
        return self.put(name, self.store.joined(kernels, count))

    def layer(
        self, layer: Any, norms: Sequence[Norm | None], fuse: Callable[..., Kernel]
    ) -> PackedLayer:
        """One layer; only some have cross-attention. ``norms`` are those before its parts."""
        own, mlp = layer["self_attention"], layer["mlp"]
        query_key_value = [own[name] for name in ("query", "key", "value")]
        mlp_norm = norms[-1]
        assert mlp_norm is not None
        packed = PackedLayer(
            self_norm=norms[0],
            self_qkv=fuse("self_qkv", *query_key_value),
            qkv_bias=self.stacked("qkv_bias", query_key_value),
            self_out=fuse("self_out", own["out"]),
            out_bias=self.vector("out_bias", own["out"]["bias"]),
            mlp_norm=mlp_norm,
            wi=fuse("wi", mlp["wi"]),
            wi_bias=self.vector("wi_bias", mlp["wi"]["bias"]),
            wo=fuse("wo", mlp["wo"]),
            wo_bias=self.vector("wo_bias", mlp["wo"]["bias"]),
        )
        if "encoder_decoder_attention" not in layer:
            return packed
        cross = layer["encoder_decoder_attention"]
        return dataclasses.replace(
            packed,
            cross_norm=norms[1],
            cross_query=fuse("cross_query", cross["query"]),
            query_bias=self.vector("query_bias", cross["query"]["bias"]),
            cross_out=fuse("cross_out", cross["out"]),
            cross_bias=self.vector("cross_bias", cross["out"]["bias"]),
        )

    def stack(self, name: str, params: Any, count: int, fuse: Callable[..., Kernel]) -> dict:
        """What encoder and decoder both have, by field."""
        cfg, stack = self.config, params[name]
        layers = [stack[f"layers_{i}"] for i in range(count)]
        parts = ["self_attention", "cross_attention", "mlp"]
        if name == "encoder":
            parts.remove("cross_attention")
        norms = [self.norm(layer[f"{part}_layer_norm"]) for layer in layers for part in parts]
        before = norms if cfg.pre_norm else [None, *norms[:-1]]
        if cfg.positions == "learned":
            table = params[f"{name}_position_embedder"]["embedding"]
            positions = self.put("positions", table)[cfg.position_offset :]
        else:
            positions = sinusoids(cfg)
        return {
            "positions": self.vector("positions", positions),
            "embedding_norm": self.norm(stack["embedding_norm"]) if cfg.embedding_norm else None,
            "layers": tuple(
                self.layer(layer, before[i * len(parts) :][: len(parts)], fuse)
                for i, layer in enumerate(layers)
            ),
            "final_norm": self.norm(stack[f"{name}_norm"]) if cfg.pre_norm else norms[-1],
        }


def pack(
    params: Params, config: BartConfig, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedBart:  # fmt: skip
    """Decode parameters from a checkpoint tree (``network.py``'s names; kernels [in, out]).

    Args: see :func:`specdec.models.t5.packing.pack`.
    """
    packer = _Packer(config, store, narrow, partitioning)
    # The large ones first, while little else is in memory: packing needs a copy.
    embedding = packer.embedding(params["token_embedder"])
    logits, generated = pack_logits(params, config, store, narrow, partitioning, output_tokens)
    bias = None
    if config.logits_bias:
        bias = packer.put("logits_bias", params["decoder"]["logits_dense"]["bias"])
        bias = (bias if generated is None else bias[generated]).astype(jnp.float32)
    depth = config.num_decoder_layers
    attentions = [
        params["decoder"][f"layers_{i}"]["encoder_decoder_attention"] for i in range(depth)
    ]
    keys_values = [each[name] for name in ("key", "value") for each in attentions]
    own = None
    if config.encoder_vocab_size is not None:
        own = packer.embedding(params["encoder_token_embedder"])
    count = config.num_encoder_layers
    encoder = PackedEncoder(own, **packer.stack("encoder", params, count, packer.encoder))
    return PackedBart(
        encoder=encoder,
        embedding=embedding,
        cross_kv=packer.encoder("cross_kv", *keys_values),
        kv_bias=packer.stacked("kv_bias", keys_values),
        **packer.stack("decoder", params, depth, packer.decoder),
        logits=logits,
        logits_bias=bias,
        output_tokens=generated,
    )
