"""A T5's decode parameters: a checkpoint's, fused and stored as a decode step reads them.

A step is bound by reading the weights once, so query, key and value become one product, wi_0 and
wi_1 another, and every layer's cross-attention K/V a third. The encoder is fused alike. Weights
that a checkpoint stores in 16 bits keep them: nothing is multiplied into a kernel.

Shapes: H heads, I = H * head_dim, D d_model, F d_ff, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.models.packed import Store
from specdec.models.partitioning import Axes, Partitioning, place
from specdec.models.products.quantized import Kernel
from specdec.models.t5.config import T5Config
from specdec.pytrees import pytree
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


# Logical axes; of a kernel before it is stacked with others.
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

    def axes(path, array: Array) -> Axes:
        named = AXES[path[-1].name]
        return named if array.ndim == len(named) else (named[0], "stack", named[1])

    return jax.tree_util.tree_map_with_path(axes, packed)


def pack(
    params: Params, config: T5Config, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedT5:  # fmt: skip
    """Decode parameters from a checkpoint tree (T5X's names; kernels [in, out]).

    Every parameter is read, placed and fused on its own: little memory is needed beside the
    result's, and on a mesh no device ever holds more than its own part. Kernels and embedding have
    ``config.dtype``, or keep one of fewer bits that they come in; other parameters have that dtype.

    Args:
      narrow: what decoder kernels and embedding of more bits are stored in; None to keep them.
      partitioning: None for one device.
      output_tokens: those that the model is to generate; None for all.
    """
    dtype = jnp.dtype(config.dtype)
    depths = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = {name: [params[name][f"layers_{i}"] for i in range(n)] for name, n in depths.items()}
    wi = ("wi_0", "wi_1") if config.gated else ("wi",)

    def put(array, axes):
        return place(array, axes, partitioning)

    def stored(array, widest):
        return array if array.dtype.itemsize < widest.itemsize else array.astype(widest)

    def fuse(name, *kernels, widest=narrow or dtype, pack=store.kernel):
        axes = AXES[name]
        fused = [put(kernel["kernel"], axes) for kernel in kernels]
        if len(fused) > 1:
            axes = (axes[0], "stack", axes[1])
            fused = [put(jnp.stack(fused, axis=1), axes)]
        return pack(stored(fused[0], widest))

    # What is read once a text, not at every step.
    encode = functools.partial(fuse, widest=dtype, pack=store.whole)

    def vector(name, parameter, dtype=dtype):
        return put(parameter, AXES[name]).astype(dtype)

    def norm(name, parameters):
        return vector(name, parameters["scale"])

    def relpos(parameters):
        biases = parameters.get("relpos_bias")
        return None if biases is None else vector("relpos", biases["rel_embedding"], jnp.float32)

    def pack_layer(layer, fuse):
        attention = "self_attention" if "self_attention" in layer else "attention"
        own, mlp = layer[attention], layer["mlp"]
        packed = PackedLayer(
            self_norm=norm("self_norm", layer[f"pre_{attention}_layer_norm"]),
            self_qkv=fuse("self_qkv", *(own[name] for name in ("query", "key", "value"))),
            self_out=fuse("self_out", own["out"]),
            mlp_norm=norm("mlp_norm", layer["pre_mlp_layer_norm"]),
            wi=fuse("wi", *(mlp[name] for name in wi)),
            wo=fuse("wo", mlp["wo"]),
            relpos=relpos(layer),
        )
        if attention == "attention":
            return packed
        cross = layer["encoder_decoder_attention"]
        return dataclasses.replace(
            packed,
            cross_norm=norm("cross_norm", layer["pre_cross_attention_layer_norm"]),
            cross_query=fuse("cross_query", cross["query"]),
            cross_out=fuse("cross_out", cross["out"]),
        )

    def pack_stack(name, fuse) -> dict[str, Any]:
        """What encoder and decoder both have."""
        return {
            "layers": tuple(pack_layer(layer, fuse) for layer in layers[name]),
            "relpos": relpos(params[name]),
            "final_norm": norm("final_norm", params[name][f"{name}_norm"]),
        }

    # The large ones first, while little else is in memory: packing needs a copy.
    generated = None if output_tokens is None else put(np.asarray(output_tokens, np.int32), (None,))
    embedding = put(params["token_embedder"]["embedding"], AXES["embedding"])
    embedding = stored(embedding, narrow or dtype)
    if config.tied_logits:
        logits = None if generated is None else embedding[generated].T
    else:
        logits = put(params["decoder"]["logits_dense"]["kernel"], AXES["logits"])
        logits = logits if generated is None else logits[:, generated]
    if logits is not None:
        axes = AXES["logits"] if generated is None else (AXES["logits"][0], None)
        logits = store.kernel(stored(put(logits, axes), narrow or dtype))
    crosses = [layer["encoder_decoder_attention"] for layer in layers["decoder"]]
    cross_kv = encode("cross_kv", *(c["key"] for c in crosses), *(c["value"] for c in crosses))
    projection = None
    if config.encoding_width is not None:
        projection = encode("input_projection", params["encoder"]["input_projection"])
    encoder = PackedEncoder(**pack_stack("encoder", encode), input_projection=projection)
    decoder = pack_stack("decoder", fuse)
    return PackedT5(
        encoder, store.embedding(embedding), cross_kv, **decoder, logits=logits,
        output_tokens=generated,
    )  # fmt: skip
