"""A GPT's decode parameters: a checkpoint's, stored as a decode step reads them.

Shapes: D d_model, F d_ff, V vocabulary, P positions, 3 for query, key and value.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.models.gpt.config import GPTConfig
from specdec.models.layer_normed import Norm
from specdec.models.partitioning import Axes, Partitioning, ways
from specdec.models.placing import place
from specdec.models.products.quantized import Kernel
from specdec.models.stores import Store, at_most, pack_logits
from specdec.types import Params

# What of a layer are kernels; the rest are norms and biases.
LAYER_KERNELS = ("self_qkv", "self_out", "wi", "wo")


@pytree
class PackedLayer:
    """One layer; kernels in the model's layout, norms and biases in the activations' dtype."""

    self_norm: Norm
    self_qkv: Kernel  # D -> 3D
    qkv_bias: Float[Array, "3 d"]
    self_out: Kernel  # D -> D
    out_bias: Float[Array, " d"]
    mlp_norm: Norm
    wi: Kernel  # D -> F
    wi_bias: Float[Array, " f"]
    wo: Kernel  # F -> D
    wo_bias: Float[Array, " d"]


@pytree
class PackedGPT:
    """Decode parameters."""

    # [V, D]; shared with the logits when they are tied. Neither is there where a step's alone are.
    embedding: Kernel
    positions: Float[Array, "p d"]
    layers: tuple[PackedLayer, ...]
    final_norm: Norm
    logits: Kernel | None  # D -> V, or N output tokens; None when they are the embedding's.
    output_tokens: Int[Array, " n"] | None = None  # What logits are of, in order; None for all.


# Logical axes.
AXES: dict[str, Axes] = {
    "self_qkv": ("embed", "joined_kv"),
    "qkv_bias": ("stack", "joined_kv"),
    "self_out": ("joined_kv", "embed"),
    "wi": ("embed", "mlp"),
    "wi_bias": ("mlp",),
    "wo": ("mlp", "embed"),
    "embedding": ("vocab", "embed"),
    "positions": ("length", "embed"),
    **dict.fromkeys(("norm_scale", "norm_bias", "out_bias", "wo_bias"), ("embed",)),
    "logits": ("embed", "vocab"),
    "output_tokens": (None,),
}


def logical_axes(packed: PackedGPT) -> PackedGPT:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""
    return jax.tree_util.tree_map_with_path(lambda path, _: AXES[path[-1].name], packed)


def pack(
    params: Params, config: GPTConfig, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedGPT:  # fmt: skip
    """Decode parameters from a checkpoint tree (``network.py``'s names; kernels [in, out]).

    Args: see :func:`specdec.models.t5.packing.pack`.
    """
    dtype = jnp.dtype(config.dtype)
    decoder = params["decoder"]

    def put(array, name):
        return place(array, AXES[name], partitioning)

    def stored(array):
        return at_most(narrow or dtype, array)

    def kernel(name, array):
        return store.kernel(stored(put(array, name)))

    def vector(name, array):
        return put(array, name).astype(dtype)

    def norm(parameters):
        return Norm(
            vector("norm_scale", parameters["scale"]), vector("norm_bias", parameters["bias"])
        )

    def qkv(array):
        array = place(array, ("embed", "stack", "joined_kv"), partitioning)
        parts = [array[:, i] for i in range(3)]
        return kernel("self_qkv", store.joined(parts, ways(partitioning, "joined_kv")))

    def pack_layer(layer):
        own, mlp = layer["self_attention"], layer["mlp"]
        return PackedLayer(
            self_norm=norm(layer["pre_self_attention_layer_norm"]),
            self_qkv=qkv(own["qkv"]["kernel"]),
            qkv_bias=vector("qkv_bias", own["qkv"]["bias"]),
            self_out=kernel("self_out", own["out"]["kernel"]),
            out_bias=vector("out_bias", own["out"]["bias"]),
            mlp_norm=norm(layer["pre_mlp_layer_norm"]),
            wi=kernel("wi", mlp["wi"]["kernel"]),
            wi_bias=vector("wi_bias", mlp["wi"]["bias"]),
            wo=kernel("wo", mlp["wo"]["kernel"]),
            wo_bias=vector("wo_bias", mlp["wo"]["bias"]),
        )

    # The large ones first, while little else is in memory: packing needs a copy.
    embedding = stored(put(params["token_embedder"]["embedding"], "embedding"))
    logits, generated = pack_logits(params, config, store, narrow, partitioning, output_tokens)
    layers = tuple(pack_layer(decoder[f"layers_{i}"]) for i in range(config.num_layers))
    return PackedGPT(
        store.embedding(embedding), vector("positions", params["position_embedder"]["embedding"]),
        layers, norm(decoder["decoder_norm"]), logits, generated,
    )  # fmt: skip
