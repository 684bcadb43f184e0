"""Decode parameters: a checkpoint's, stored as a decode step reads them.

A step is bound by reading the weights once, so query, key and value become one product, wi_0 and
wi_1 another, and what every layer makes of an encoder's output a third. Where R heads of queries
share a key, the query's kernel is R kernels of a key's size: the r-th has the r-th query of each
key. So joined kernels are all of one size, and a mesh cuts all of them alike.

Shapes: H heads, G heads of keys and values, R = H / G, I = H * K, J = G * K, D d_model, F d_ff.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.models.partitioning import Axes, Partitioning, ways
from specdec.models.placing import place
from specdec.models.products.quantized import Kernel
from specdec.models.rotary.config import RotaryConfig, Stack
from specdec.models.stores import Store, at_most, pack_logits
from specdec.types import Params

# What of a layer are kernels; the rest are scales of norms and biases.
LAYER_KERNELS = ("self_qkv", "self_out", "wi", "wo", "cross_query", "cross_out")


@pytree
class PackedLayer:
    """One layer; kernels in the model's layout, what norms multiply with in float32.

    What its stack has not is None.
    """

    self_norm: Float[Array, " d"]
    self_qkv: Kernel  # D -> (R + 2) J
    self_out: Kernel  # I -> D
    mlp_norm: Float[Array, " d"]
    wi: Kernel  # D -> 2F
    wo: Kernel  # F -> D
    qkv_bias: Float[Array, "r+2 j"] | None = None
    query_norm: Float[Array, " k"] | None = None
    key_norm: Float[Array, " k"] | None = None
    self_post_norm: Float[Array, " d"] | None = None
    mlp_post_norm: Float[Array, " d"] | None = None
    cross_norm: Float[Array, " d"] | None = None
    cross_query: Kernel | None = None  # D -> I
    cross_out: Kernel | None = None  # I -> D
    cross_post_norm: Float[Array, " d"] | None = None


@pytree
class PackedEncoder:
    """An encoder."""

    embedding: Kernel | None  # [V, D]; None where it has the decoder's.
    layers: tuple[PackedLayer, ...]
    final_norm: Float[Array, " d"]


@pytree
class PackedRotary:
    """Decode parameters; those of no other part are the decoder's.

    A decoder alone, and a draft that starts from what its target made of the inputs, have no
    encoder and no cross_kv.
    """

    encoder: PackedEncoder | None
    embedding: Kernel  # [V, D]; shared with the logits when they are tied.
    cross_kv: Kernel | None  # Encoder's D -> 2 * layers * J, every layer's keys and values.
    layers: tuple[PackedLayer, ...]
    final_norm: Float[Array, " d"]
    logits: Kernel | None  # D -> V, or N output tokens; None when they are the embedding's.
    output_tokens: Int[Array, " n"] | None = None  # What logits are of, in order; None for all.


# Logical axes.
AXES: dict[str, Axes] = {
    **dict.fromkeys(("self_qkv", "cross_query", "cross_kv"), ("embed", "joined_kv")),
    **dict.fromkeys(("self_out", "cross_out"), ("joined_kv", "embed")),
    "qkv_bias": ("stack", "joined_kv"),
    "wi": ("embed", "mlp"),
    "wo": ("mlp", "embed"),
    "embedding": ("vocab", "embed"),
    **dict.fromkeys(("query_norm", "key_norm"), ("kv",)),
    **dict.fromkeys(("self_norm", "cross_norm", "mlp_norm", "final_norm"), ("embed",)),
    **dict.fromkeys(("self_post_norm", "cross_post_norm", "mlp_post_norm"), ("embed",)),
    "logits": ("embed", "vocab"),
    "output_tokens": (None,),
}


def logical_axes(packed: PackedRotary) -> PackedRotary:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""
    return jax.tree_util.tree_map_with_path(lambda path, _: AXES[path[-1].name], packed)


@dataclasses.dataclass(frozen=True)
class Packer:
    """Packs the parts of a checkpoint tree (``network.py``'s names; kernels [in, out]).

    Attributes: see ``Packer`` in :mod:`specdec.models.t5.packing`.
    """

    config: RotaryConfig
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

    def decoder(self, name: str, *kernels: Array) -> Kernel:
        """Kernels as one, which is read at every step."""
        return self.store.kernel(at_most(self.narrow or self.dtype, self._fused(name, kernels)))

    def encoder(self, name: str, *kernels: Array) -> Kernel:
        """Kernels as one, which is read once a text."""
        return self.store.whole(at_most(self.dtype, self._fused(name, kernels)))

    def _fused(self, name, kernels):
        axes = AXES[name]
        fused = [self.put(kernel, axes) for kernel in kernels]
        if len(fused) == 1:
            return fused[0]
        return self.put(self.store.joined(fused, ways(self.partitioning, axes[1])), axes)

    def embedding(self, parameters: Any) -> Array:
        """A table in its own bits or fewer."""
        array = self.put(parameters["embedding"], AXES["embedding"])
        return at_most(self.narrow or self.dtype, array)

    def norm(self, name: str, parameters: Any) -> Float[Array, " d"]:
        """What a norm multiplies with: its scale with its dtype's rounding, but wide."""
        scale = self.put(parameters["scale"], AXES[name]).astype(self.dtype)
        wide = scale.astype(jnp.promote_types(self.dtype, jnp.float32))
        return wide + 1 if self.config.shifted_norms else wide

    def layer(self, stack: Stack, layer: Any, fuse: Callable[..., Kernel]) -> PackedLayer:
        """One layer of a stack."""
        own, mlp = layer["self_attention"], layer["mlp"]
        parts = ("query", "key", "value")
        found: dict[str, Any] = {
            "self_qkv": fuse(
                "self_qkv", *(p for name in parts for p in _apart(stack, own[name]["kernel"]))
            ),
            "self_out": fuse("self_out", own["out"]["kernel"]),
            "wi": fuse("wi", mlp["wi_0"]["kernel"], mlp["wi_1"]["kernel"]),
            "wo": fuse("wo", mlp["wo"]["kernel"]),
        }
        if stack.qkv_biases:
            biases = [p for name in parts for p in _apart(stack, own[name]["bias"])]
            found["qkv_bias"] = self.put(jnp.stack(biases), AXES["qkv_bias"]).astype(self.dtype)
        if stack.query_key_norms:
            for name in ("query_norm", "key_norm"):
                found[name] = self.norm(name, own[name])
        if "encoder_decoder_attention" in layer:
            cross = layer["encoder_decoder_attention"]
            found["cross_query"] = fuse("cross_query", cross["query"]["kernel"])
            found["cross_out"] = fuse("cross_out", cross["out"]["kernel"])
        for part in ("self", "cross", "mlp"):
            theirs = part if part == "mlp" else f"{part}_attention"
            for when, ours in (("pre", f"{part}_norm"), ("post", f"{part}_post_norm")):
                if f"{when}_{theirs}_layer_norm" in layer:
                    found[ours] = self.norm(ours, layer[f"{when}_{theirs}_layer_norm"])
        return PackedLayer(**found)

    def stack(self, name: str, parameters: Any, fuse: Callable[..., Kernel]) -> dict[str, Any]:
        """What encoder and decoder both have: ``layers`` and ``final_norm``."""
        stack = self.config.stacks[name]
        layers = (parameters[f"layers_{i}"] for i in range(stack.num_layers))
        return {
            "layers": tuple(self.layer(stack, layer, fuse) for layer in layers),
            "final_norm": self.norm("final_norm", parameters[f"{name}_norm"]),
        }

    def cross_kv(self, decoder: Any) -> Kernel:
        """What every layer makes of an encoder's output: all keys, then all values."""
        merged = self.config.merged_attention
        name = "self_attention" if merged else "encoder_decoder_attention"
        layers = [decoder[f"layers_{i}"][name] for i in range(self.config.num_layers)]
        kernels = (layer[part]["kernel"] for part in ("key", "value") for layer in layers)
        return self.encoder("cross_kv", *kernels)


def _apart(stack: Stack, joined: Any) -> list[Array]:
    """A query's parameters [..., I] as R of a key's size; a key's or value's own."""
    joined = joined if isinstance(joined, jax.Array) else np.asarray(joined)
    groups, size = stack.num_kv_heads, stack.head_dim
    parts = joined.reshape(*joined.shape[:-1], groups, -1, size)
    flat = (*joined.shape[:-1], groups * size)
    return [parts[..., r, :].reshape(flat) for r in range(parts.shape[-2])]


def pack(
    params: Params, config: RotaryConfig, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedRotary:  # fmt: skip
    """Decode parameters from a checkpoint tree.

    Args: see :func:`specdec.models.t5.packing.pack`.
    """
    packer = Packer(config, store, narrow, partitioning)
    # The large ones first, while little else is in memory: packing needs a copy.
    embedding = store.embedding(packer.embedding(params["token_embedder"]))
    logits, generated = pack_logits(params, config, store, narrow, partitioning, output_tokens)
    encoder = cross_kv = None
    if config.encoder is not None:
        own = None
        if not config.shared_embedding:
            own = store.embedding(packer.embedding(params["encoder"]["token_embedder"]))
        cross_kv = packer.cross_kv(params["decoder"])
        encoder = PackedEncoder(own, **packer.stack("encoder", params["encoder"], packer.encoder))
    decoder = packer.stack("decoder", params["decoder"], packer.decoder)
    return PackedRotary(
        encoder, embedding, cross_kv, **decoder, logits=logits, output_tokens=generated
    )
