"""Decode parameters as trees, their logical axes, and copies of them in few bits.

Shapes: H heads, G heads of keys and values, R = H / G, I = H * K, J = G * K, D d_model, F d_ff,
P positions, V vocabulary, L layers of the decoder.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias, TypeVar, cast

import jax
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.models.partitioning import Axes
from specdec.models.products.few_tokens import of_layer
from specdec.models.products.quantized import Int8Kernel, Kernel, OfLayer
from specdec.models.transformer.config import TransformerConfig

T = TypeVar("T")
_KERNELS = ("self_qkv", "self_out", "wi", "wo", "cross_query", "cross_out")


@pytree
class PackedNorm:
    """A norm's parameters: factors, and what a LayerNorm adds.

    An RMSNorm's factors are wide, as they are multiplied, but with the rounding of the activations'
    dtype; a LayerNorm's have that dtype.
    """

    norm_scale: Float[Array, " d"]
    norm_bias: Float[Array, " d"] | None = None


@pytree
class PackedLayer:
    """One layer; kernels in the model's layout. What its stack has not is None."""

    # Of a first layer with norms after parts None, or filler in a stack: nothing is before it.
    self_norm: PackedNorm | None
    self_qkv: Kernel  # D -> (R + 2) J
    qkv_bias: Float[Array, "r+2 j"] | None
    self_out: Kernel  # I -> D
    out_bias: Float[Array, " d"] | None
    mlp_norm: PackedNorm
    wi: Kernel  # D -> F, or 2F when gated
    wi_bias: Float[Array, " f"] | None
    wo: Kernel  # F -> D
    wo_bias: Float[Array, " d"] | None
    query_norm: PackedNorm | None = None
    key_norm: PackedNorm | None = None
    self_post_norm: PackedNorm | None = None
    mlp_post_norm: PackedNorm | None = None
    cross_norm: PackedNorm | None = None
    cross_query: Kernel | None = None  # D -> I
    query_bias: Float[Array, " i"] | None = None
    cross_out: Kernel | None = None  # I -> D
    cross_bias: Float[Array, " d"] | None = None
    cross_post_norm: PackedNorm | None = None
    relpos: Float[Array, "h r"] | None = None  # Position biases, where each layer has its own.


# An array for each layer, or as few_tokens.py reads them, one for all: [L, ...].
Layers: TypeAlias = tuple[PackedLayer, ...] | PackedLayer


@pytree
class PackedEncoder:
    """An encoder."""

    embedding: Kernel | None  # [V, D]; None where it has the decoder's.
    positions: Float[Array, "p d"] | None
    embedding_norm: PackedNorm | None
    layers: Layers
    relpos: Float[Array, "h r"] | None
    final_norm: PackedNorm
    # W -> D, for a draft that starts from its target's encoding of width W.
    input_projection: Kernel | None = None
    # Convolutions of features, of three frames each: 3M -> D and 3D -> D.
    conv1: Kernel | None = None
    conv1_bias: Float[Array, " d"] | None = None
    conv2: Kernel | None = None
    conv2_bias: Float[Array, " d"] | None = None


@pytree
class PackedTransformer:
    """Decode parameters; those of no other part are the decoder's.

    A decoder alone, and a draft that starts from what its target made of the inputs, have no
    encoder and no cross_kv. Where a step's parameters are alone, no embedding is there but a tied
    one.
    """

    encoder: PackedEncoder | None
    embedding: Kernel | None  # [V, D]; shared with the logits when they are tied.
    positions: Float[Array, "p d"] | None
    embedding_norm: PackedNorm | None
    cross_kv: Kernel | None  # Encoder's D -> 2LJ, every layer's keys and values.
    kv_bias: Float[Array, "2l j"] | None
    layers: Layers
    relpos: Float[Array, "h r"] | None  # Position biases; None where layers have their own.
    final_norm: PackedNorm
    logits: Kernel | None  # D -> V, or N output tokens; None when they are the embedding's.
    logits_bias: Float[Array, " v"] | None = None  # Or of N output tokens.
    output_tokens: Int[Array, " n"] | None = None  # Tokens of the logits, in order; None for all.


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
    "relpos": ("heads", "relpos_buckets"),
    **dict.fromkeys(("norm_scale", "norm_bias"), ("embed",)),
    **dict.fromkeys(("out_bias", "cross_bias", "wo_bias", "conv1_bias", "conv2_bias"), ("embed",)),
    "logits": ("embed", "vocab"),
    "logits_bias": ("vocab",),
    "output_tokens": (None,),
    **dict.fromkeys(("input_projection", "conv1", "conv2"), ("encoding", "embed")),
}
OF_HEADS = ("query_norm", "key_norm")


def logical_axes(packed: T) -> T:
    """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""

    def axes(path: jax.tree_util.KeyPath, _: object) -> Axes:
        names = [each.name for each in path if isinstance(each, jax.tree_util.GetAttrKey)]
        return ("kv",) if set(names) & {*OF_HEADS} else AXES[names[-1]]

    return jax.tree_util.tree_map_with_path(axes, packed)


def axis_sizes(config: TransformerConfig) -> dict[str, dict[str, int]]:
    """Sizes along each logical axis that a mesh may cut, by their names.

    An encoder's are those that are not the decoder's, too.
    """
    found: dict[str, dict[str, int]] = {}
    for name, stack in reversed(config.stacks.items()):
        heads = "num_kv_heads" if stack.kv_heads < stack.num_heads else "num_heads"
        own = {
            "heads": (heads, stack.kv_heads), "mlp": ("d_ff", stack.d_ff),
            "joined_kv": (heads, stack.kv_heads),  # Cut between heads, not inside one.
            "embed": ("d_model", stack.d_model), "kv": ("head_dim", stack.head_dim),
        }  # fmt: skip
        for axis, (size_name, size) in own.items():
            sizes = found.setdefault(axis, {})
            if size not in sizes.values():
                sizes[size_name if name == "decoder" else f"{name}.{size_name}"] = size
    found["vocab"] = {"vocab_size": config.vocab_size}
    if config.encoder_vocab_size not in (None, config.vocab_size):
        found["vocab"]["encoder_vocab_size"] = cast(int, config.encoder_vocab_size)
    return found


def kernels(packed: PackedTransformer) -> list[dict[str, Kernel]]:
    """Each decoder layer's that are there, by name; the rest are norms and biases.

    Those of stacked layers are all in one.
    """
    layers = packed.layers if isinstance(packed.layers, tuple) else (packed.layers,)
    return [_kernels(layer) for layer in layers]


def _kernels(layer: PackedLayer) -> dict[str, Kernel]:
    found = {name: getattr(layer, name) for name in _KERNELS}
    return {name: each for name, each in found.items() if each is not None}


def layer_of(stacked: PackedLayer, number: Int[Array, ""]) -> PackedLayer:
    """One of stacked layers; its kernels stay where they lie."""
    own = _kernels(stacked)
    rest = dataclasses.replace(stacked, **dict.fromkeys(own))
    rest = jax.tree.map(lambda leaf: of_layer(leaf, number), rest)
    return dataclasses.replace(rest, **{name: OfLayer(own[name], number) for name in own})


def quantized(
    packed: PackedTransformer, ops: ModuleType, bits: int, group: int, *, of_target: bool
) -> PackedTransformer:
    """Parameters with the decoder's kernels, and the logits', in few bits.

    Args:
      ops: the products of their layout.
      of_target: they draft for these very parameters, and share what those make of the inputs.

    Raises:
      ValueError: see :meth:`specdec.models.base.LoadableModel.quantized`.
    """
    logits = ops.tied(packed.embedding) if packed.logits is None else packed.logits
    if bits == 8 and isinstance(logits, Int8Kernel):
        raise ValueError("The model's weights have 8 bits already: choose Quantized(bits=4).")
    # One program for each shape.
    quantize = jax.jit(functools.partial(ops.quantize, bits=bits, group=group))
    each_layers = jax.jit(functools.partial(jax.lax.map, quantize))

    def few_bits(layer: PackedLayer, quantize: Callable[[Kernel], Kernel]) -> PackedLayer:
        found = {name: quantize(each) for name, each in _kernels(layer).items()}
        return dataclasses.replace(layer, **found)

    if isinstance(packed.layers, tuple):
        layers = tuple(few_bits(layer, quantize) for layer in packed.layers)
    else:
        layers = few_bits(packed.layers, each_layers)
    packed = dataclasses.replace(packed, layers=layers, logits=quantize(logits))
    return dataclasses.replace(packed, encoder=None, cross_kv=None) if of_target else packed
