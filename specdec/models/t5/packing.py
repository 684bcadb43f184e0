"""A T5's decode parameters: a checkpoint's, fused and stored as a decode step reads them.

One decode step is bound by reading the weights once, so query, key and value become one product,
wi_0 and wi_1 another, every layer's cross-attention K/V a third, and norm scales are multiplied
into the kernels that follow.

Shapes: H heads, I = H * head_dim, D d_model, F d_ff, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.models.partitioning import Axes, Partitioning, place
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import encoder_axes
from specdec.types import Params, pytree

Kernel = Array  # As few_tokens.py or plain.py packs it.


@pytree
class PackedLayer:
    """One decoder layer; kernels in the model's layout.

    Attributes:
      self_qkv: D -> 3I; self_out: I -> D; cross_query: D -> I; cross_out: I -> D;
      wi: D -> F or 2F when gated; wo: F -> D. Those from D hold the scale of the norm before.
    """

    self_qkv: Kernel
    self_out: Kernel
    cross_query: Kernel
    cross_out: Kernel
    wi: Kernel
    wo: Kernel


@pytree
class PackedT5:
    """Decode parameters.

    Attributes:
      encoder: the checkpoint's ``encoder`` subtree, as it is.
      embedding: [V, D]; shared with the logits when they are tied.
      cross_kv: D -> 2 * layers * I, every decoder layer's cross-attention keys and values.
      layers: the decoder.
      relpos: [H, num_buckets], the decoder's position biases.
      final_norm: [D].
      logits: D -> V, or D -> N for N output tokens; None when they are the embedding's.
      output_tokens: [N], the tokens that logits are of, in order; None for all of them.
    """

    encoder: Params
    embedding: Float[Array, "v d"]
    cross_kv: Kernel
    layers: tuple[PackedLayer, ...]
    relpos: Float[Array, "h r"]
    final_norm: Float[Array, " d"]
    logits: Kernel | None
    output_tokens: Int[Array, " n"] | None = None


# Logical axes; of a kernel before it is stacked with others. The encoder's are network.py's.
_INTO_HEADS, _FROM_HEADS = ("embed", "joined_kv"), ("joined_kv", "embed")
AXES: dict[str, Axes] = {
    "self_qkv": _INTO_HEADS,
    "self_out": _FROM_HEADS,
    "cross_query": _INTO_HEADS,
    "cross_out": _FROM_HEADS,
    "wi": ("embed", "mlp"),
    "wo": ("mlp", "embed"),
    "embedding": ("vocab", "embed"),
    "cross_kv": _INTO_HEADS,
    "relpos": ("heads", "relpos_buckets"),
    "final_norm": ("embed",),
    "logits": ("embed", "vocab"),
}


def logical_axes(packed: PackedT5, config: T5Config) -> PackedT5:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""

    def axes(path, array: Array) -> Axes:
        named = AXES[path[-1].name]
        return named if array.ndim == len(named) else (named[0], "stack", named[1])

    decoder = jax.tree_util.tree_map_with_path(axes, dataclasses.replace(packed, encoder={}))
    return dataclasses.replace(decoder, encoder=encoder_axes(config) if packed.encoder else {})


def pack(
    params: Params,
    config: T5Config,
    pack_kernel: Callable[[Array], Kernel],
    stored: jnp.dtype,
    partitioning: Partitioning | None,
    output_tokens: Sequence[int] | None = None,
) -> PackedT5:
    """Decode parameters from a checkpoint tree (T5X's names; kernels [in, out]).

    Every parameter is read, placed and fused on its own: little memory is needed beside the
    result's, and on a mesh no device ever holds more than its own part.

    Args:
      pack_kernel: stores a kernel [in, out], or stacked ones [in, N, out], in a layout.
      stored: the dtype of kernels and embedding.
      partitioning: None for one device.
      output_tokens: those that the model is to say, on one device; None for all.
    """
    decoder, dtype = params["decoder"], jnp.dtype(config.dtype)
    layers = [decoder[f"layers_{i}"] for i in range(config.num_decoder_layers)]
    wi = ("wi_0", "wi_1") if config.gated else ("wi",)

    def put(array, axes):
        return place(array, axes, partitioning)

    def fuse(name, *kernels, norm=None, dtype=stored):
        axes = AXES[name]
        fused = [put(kernel["kernel"], axes) for kernel in kernels]
        if len(fused) > 1:
            axes = (axes[0], "stack", axes[1])
            fused = [put(jnp.stack(fused, axis=1), axes)]
        (kernel,) = fused
        if norm is not None:
            scale = put(norm["scale"], axes[:1])
            kernel = kernel * scale.reshape(-1, *(1,) * (kernel.ndim - 1))
        return pack_kernel(kernel.astype(dtype))

    def pack_layer(layer):
        own, cross, mlp = (
            layer["self_attention"], layer["encoder_decoder_attention"], layer["mlp"],
        )  # fmt: skip
        return PackedLayer(
            self_qkv=fuse(
                "self_qkv",
                own["query"],
                own["key"],
                own["value"],
                norm=layer["pre_self_attention_layer_norm"],
            ),
            self_out=fuse("self_out", own["out"]),
            cross_query=fuse(
                "cross_query", cross["query"], norm=layer["pre_cross_attention_layer_norm"]
            ),
            cross_out=fuse("cross_out", cross["out"]),
            wi=fuse("wi", *(mlp[name] for name in wi), norm=layer["pre_mlp_layer_norm"]),
            wo=fuse("wo", mlp["wo"]),
        )

    # The large ones first, while little else is in memory: packing needs a copy.
    said = None if output_tokens is None else jnp.asarray(output_tokens, jnp.int32)
    logits = None
    if not config.tied_logits:
        kernel = put(decoder["logits_dense"]["kernel"], AXES["logits"])
        logits = pack_kernel((kernel if said is None else kernel[:, said]).astype(stored))
    embedding = put(params["token_embedder"]["embedding"], AXES["embedding"]).astype(stored)
    if config.tied_logits and said is not None:
        logits = pack_kernel(embedding[said].T)
    crosses = [layer["encoder_decoder_attention"] for layer in layers]
    cross_kv = fuse(
        "cross_kv", *(c["key"] for c in crosses), *(c["value"] for c in crosses), dtype=dtype
    )
    relpos = put(decoder["relpos_bias"]["rel_embedding"], AXES["relpos"])
    final_norm = put(decoder["decoder_norm"]["scale"], AXES["final_norm"])
    return PackedT5(
        encoder=jax.tree.map(
            lambda array, axes: put(array, axes).astype(dtype),
            params["encoder"],
            encoder_axes(config),
        ),
        embedding=embedding,
        cross_kv=cross_kv,
        layers=tuple(pack_layer(layer) for layer in layers),
        relpos=relpos.astype(jnp.float32),
        final_norm=final_norm.astype(dtype),
        logits=logits,
        output_tokens=said,
    )
