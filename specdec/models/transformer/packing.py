"""Decode parameters: a checkpoint's, fused and stored as a decode step reads them.

A step is bound by reading the weights once, so query, key and value become one product, wi_0 and
wi_1 another, and what every layer makes of an encoder's output a third. Where R heads of queries
share a key, the query's kernel is R kernels of a key's size: the r-th has the r-th query of each
key. So joined kernels are all of one size, and a mesh cuts all of them alike. Weights that a
checkpoint stores in 16 bits keep them: nothing is multiplied into a kernel.

Each part has the norm before it: where norms are after parts, that is the one after the part
before, and the last one is the stack's final norm.

On CPU all of this is NumPy's work: loading compiles nothing, and each kernel is written once, into
the stack of all layers' kernels. Elsewhere it is done where the parameters lie.

Shapes: H heads, G heads of keys and values, R = H / G, I = H * K, J = G * K, D d_model, F d_ff,
P positions, V vocabulary, L layers of the decoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.models.partitioning import Axes, Partitioning, ways
from specdec.models.placing import Readable, place
from specdec.models.products.quantized import Kernel
from specdec.models.stores import Store, at_most
from specdec.models.transformer import tree
from specdec.models.transformer.arithmetic import sinusoids
from specdec.models.transformer.config import Absolute, Stack, TransformerConfig
from specdec.models.transformer.packed import (
    AXES,
    OF_HEADS,
    Layers,
    PackedEncoder,
    PackedLayer,
    PackedNorm,
    PackedTransformer,
)
from specdec.types import AnyArray, Params

T = TypeVar("T")
Tree: TypeAlias = Mapping[str, Any]  # Of a checkpoint's parameters: Flax's nested dicts.
Leaf: TypeAlias = Array | np.ndarray | Readable


class StackFields(TypedDict):
    """Fields that encoder and decoder both have; see :class:`PackedTransformer`."""

    positions: Float[Array, "p d"] | None
    embedding_norm: PackedNorm | None
    layers: Layers
    relpos: Float[Array, "h r"] | None
    final_norm: PackedNorm


@dataclasses.dataclass(frozen=True)
class Packer:
    """Packs the parts of a checkpoint tree (``tree.py``'s names; kernels [in, out]).

    Every layer's parameters are read, placed and fused on their own: little memory is needed beside
    the result's, and on a mesh no device ever holds more than its own part. Kernels and embedding
    have ``config.dtype``, or keep one of fewer bits that they come in; other parameters have that
    dtype.

    Attributes:
      narrow: dtype for decoder kernels and embedding of more bits; None to keep theirs.
      partitioning: None for one device.
    """

    config: TransformerConfig
    store: Store
    narrow: jnp.dtype | None
    partitioning: Partitioning | None

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of kernels that are not stored in fewer bits."""
        return jnp.dtype(self.config.dtype)

    def put(self, array: Leaf, axes: Axes) -> AnyArray:
        """Puts an array on its devices, or reads it, to pack it on the host."""
        if self.store.stacked and not isinstance(array, jax.Array):
            return np.asarray(array)
        return place(array, axes, self.partitioning)

    def placed(self, packed: T) -> T:
        """A tree that was packed on the host, on its device; all others are there already."""
        return jax.device_put(packed) if self.store.stacked else packed

    def stored(self, array: AnyArray) -> AnyArray:
        """A decoder's kernel or an embedding, in its own bits or fewer."""
        return at_most(self.narrow or self.dtype, array)

    def decoder_kernel(self, name: str, *kernels: Leaf) -> Kernel:
        """Kernels as one, which is read at every step."""
        return self.store.kernel(self.stored(self._fused(name, kernels)))

    def encoder_kernel(self, name: str, *kernels: Leaf) -> Kernel:
        """Kernels as one, which is read once a text."""
        return self.store.whole(at_most(self.dtype, self._fused(name, kernels)))

    def _fused(self, name: str, kernels: Sequence[Leaf]) -> AnyArray:
        axes = AXES[name]
        fused = [self.put(kernel, axes) for kernel in kernels]
        if len(fused) == 1:
            return fused[0]
        return self.put(self.store.joined(fused, ways(self.partitioning, axes[1])), axes)

    def embedding(self, parameters: Tree) -> Kernel:
        """A table [V, D]."""
        table = self.put(parameters["embedding"], AXES["embedding"])
        return self.store.embedding(self.stored(table))

    def vector(self, name: str, array: Leaf) -> AnyArray:
        """A bias, or a table of positions."""
        return self.put(array, AXES[name]).astype(self.dtype)

    def bias(self, name: str, parameters: Tree) -> AnyArray | None:
        """A product's, where it has one."""
        return self.vector(name, parameters["bias"]) if "bias" in parameters else None

    def norm(self, parameters: Tree, axes: Axes = ("embed",)) -> PackedNorm:
        """Parameters of a norm."""
        scale = self.put(parameters["scale"], axes).astype(self.dtype)
        kind = self.config.decoder.norm.kind
        if kind == "layer":
            return PackedNorm(scale, self.vector("norm_bias", parameters["bias"]))
        wide = scale.astype(jnp.promote_types(self.dtype, jnp.float32))
        return PackedNorm(wide + 1 if kind == "shifted_rms" else wide)

    def relpos(self, parameters: Tree) -> Float[AnyArray, "h r"] | None:
        """Position biases of a stack or a layer, if it has some."""
        if "relpos_bias" not in parameters:
            return None
        biases = parameters["relpos_bias"]["rel_embedding"]
        return self.put(biases, AXES["relpos"]).astype(jnp.float32)

    def _qkv(self, stack: Stack, own: Tree, name: str) -> list[Leaf]:
        """Kernels or biases of R queries of a key's size, and of key and value."""
        if "qkv" in own:
            array, axes = own["qkv"][name], ("stack", "joined_kv")
            array = self.put(array, ("embed", *axes) if name == "kernel" else axes)
            return [array[..., i, :] for i in range(3)]
        parts = [own[each] for each in ("query", "key", "value")]
        return [part for each in parts for part in _apart(stack, _leaf(each, name, parts[2]))]

    def _stacked(self, name: str, parts: Sequence[Leaf]) -> AnyArray:
        """Biases of joined kernels, one below the other."""
        rows = [self.put(part, ("joined_kv",)) for part in parts]
        return self.vector(name, rows[0].__array_namespace__().stack(rows))

    def layer(
        self, name: str, layer: Tree, norms: Sequence[PackedNorm | None],
        fuse: Callable[..., Kernel],
    ) -> PackedLayer:  # fmt: skip
        """One layer; ``norms`` are those before its parts, of which a decoder may have three."""
        cfg, stack = self.config, self.config.stacks[name]
        own_name = tree.self_attention(stack, name)
        *_, mlp_norm = norms
        assert mlp_norm is not None
        own, mlp, cross = layer[own_name], layer["mlp"], layer.get("encoder_decoder_attention")
        wi = ("wi_0", "wi_1") if stack.gated else ("wi",)
        post: dict[str, Any] = {}
        if stack.norm.place == "both":
            names = {"self": own_name, "mlp": "mlp"} | (
                {} if cross is None else {"cross": "cross_attention"}
            )
            post = {
                f"{ours}_post_norm": self.norm(layer[tree.norm(cfg, part, "post")])
                for ours, part in names.items()
            }
        if stack.query_key_norms:
            post |= {each: self.norm(own[each], ("kv",)) for each in OF_HEADS}
        if cross is not None:
            post |= {
                "cross_norm": norms[1],
                "cross_query": fuse("cross_query", cross["query"]["kernel"]),
                "query_bias": self.bias("query_bias", cross["query"]),
                "cross_out": fuse("cross_out", cross["out"]["kernel"]),
                "cross_bias": self.bias("cross_bias", cross["out"]),
            }
        qkv_bias = None
        if stack.biases != "none":
            qkv_bias = self._stacked("qkv_bias", self._qkv(stack, own, "bias"))
        return PackedLayer(
            self_norm=norms[0],
            self_qkv=fuse("self_qkv", *self._qkv(stack, own, "kernel")),
            qkv_bias=qkv_bias,
            self_out=fuse("self_out", own["out"]["kernel"]),
            out_bias=self.bias("out_bias", own["out"]),
            mlp_norm=mlp_norm,
            wi=fuse("wi", *(mlp[each]["kernel"] for each in wi)),
            wi_bias=self.bias("wi_bias", mlp[wi[0]]),
            wo=fuse("wo", mlp["wo"]["kernel"]),
            wo_bias=self.bias("wo_bias", mlp["wo"]),
            relpos=self.relpos(layer),
            **post,
        )

    def stack(self, name: str, params: Tree, fuse: Callable[..., Kernel]) -> StackFields:
        """Fields of a stack, of a whole tree or of a decoder alone."""
        cfg, stack, own = self.config, self.config.stacks[name], params[name]
        layers = [own[f"layers_{i}"] for i in range(stack.num_layers)]
        crosses = any("encoder_decoder_attention" in layer for layer in layers)
        parts = [tree.self_attention(stack, name), *["cross_attention"] * crosses, "mlp"]
        norms = [self.norm(layer[tree.norm(cfg, part)]) for layer in layers for part in parts]
        after = stack.norm.place == "after"
        # Nothing is before the first part; but stacks are of layers that all have the same.
        none = jax.tree.map(lambda leaf: 0 * leaf, norms[:1]) if self.store.stacked else [None]
        before, count = none * after + norms, len(parts)
        found = (
            self.layer(name, layer, before[i * count :][:count], fuse)
            for i, layer in enumerate(layers)
        )
        last = norms[-1] if after else self.norm(own[f"{name}_norm"])
        embedding_norm = self.norm(own["embedding_norm"]) if stack.norm.embedding else None
        return StackFields(
            positions=self.positions(name, params), embedding_norm=embedding_norm,
            layers=_stack(found, len(layers)) if self.store.stacked and layers else tuple(found),
            relpos=self.relpos(own), final_norm=last,
        )  # fmt: skip

    def positions(self, name: str, params: Tree) -> AnyArray | None:
        """A stack's table of positions, from its first position's row on."""
        stack = self.config.stacks[name]
        if not isinstance(stack.positions, Absolute):
            return None
        table = tree.position_embedder(self.config, name)
        if table is None:
            return self.vector("positions", sinusoids(stack.positions, stack.d_model))
        rows = self.put(params[table]["embedding"], AXES["positions"])
        return self.vector("positions", rows[stack.positions.offset :])

    def cross_kv(self, decoder: Tree) -> tuple[Kernel, AnyArray | None]:
        """Kernel from an encoder's output to every layer's keys, then values; and its bias."""
        merged = self.config.merged_attention
        name = "self_attention" if merged else "encoder_decoder_attention"
        layers = [decoder[f"layers_{i}"][name] for i in range(self.config.num_decoder_layers)]
        parts = [layer[part] for part in ("key", "value") for layer in layers]
        kernel = self.encoder_kernel("cross_kv", *(part["kernel"] for part in parts))
        if "bias" not in parts[-1]:
            return kernel, None
        return kernel, self._stacked("kv_bias", [_leaf(part, "bias", parts[-1]) for part in parts])

    def convolutions(self, encoder: Tree) -> dict[str, Any]:
        """Kernels and biases of an encoder of features; none of others."""
        found: dict[str, Any] = {}
        for name in ("conv1", "conv2") if self.config.features is not None else ():
            found[name] = self.encoder_kernel(name, encoder[name]["kernel"])
            found[f"{name}_bias"] = self.bias(f"{name}_bias", encoder[name])
        return found

    def logits(
        self, params: Tree, output_tokens: Sequence[int] | None
    ) -> tuple[Kernel | None, AnyArray | None, Int[AnyArray, " n"] | None]:
        """The logits' kernel, None where the embedding serves, their bias, and their tokens."""
        cfg, generated, kernel = self.config, None, None
        if output_tokens is not None:
            generated = self.put(np.asarray(output_tokens, np.int32), AXES["output_tokens"])
        if generated is not None or not cfg.logits.tied:
            if cfg.logits.tied:
                kernel = self.put(params["token_embedder"]["embedding"], AXES["embedding"]).T
            else:
                kernel = self.put(params["decoder"]["logits_dense"]["kernel"], AXES["logits"])
            if generated is not None:
                kernel = kernel[:, generated]
            axes = ("embed", "vocab" if generated is None else None)
            kernel = self.store.kernel(self.stored(self.put(kernel, axes)))
        bias = None
        if cfg.logits.bias:
            bias = self.put(params["decoder"]["logits_dense"]["bias"], AXES["logits_bias"])
            bias = (bias if generated is None else bias[generated]).astype(jnp.float32)
        return kernel, bias, generated


def _leaf(part: Tree, name: str, like: Tree) -> Leaf:
    """A kernel or bias; of keys without a bias one of zeros, as wide as that of values."""
    return part[name] if name in part else np.zeros(like[name].shape, np.float32)


def _apart(stack: Stack, joined: Leaf) -> list[Leaf]:
    """A query's parameters [..., I] as R of a key's size; a key's or value's own."""
    if stack.num_heads == stack.kv_heads:
        return [joined]
    joined = joined if isinstance(joined, jax.Array) else np.asarray(joined)
    groups, size = stack.kv_heads, stack.head_dim
    parts = joined.reshape(*joined.shape[:-1], groups, -1, size)
    flat = (*joined.shape[:-1], groups * size)
    return [parts[..., r, :].reshape(flat) for r in range(parts.shape[-2])]


def _stack(layers: Iterable[PackedLayer], count: int) -> PackedLayer:
    """Layers with their arrays in one each: [L, ...].

    Those of NumPy are copied when they come, so that one layer at a time is read. Of several dtypes
    the widest holds all.
    """
    stacks: list[AnyArray] = []
    for i, layer in enumerate(layers):
        leaves, treedef = jax.tree.flatten(layer)
        if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            return jax.tree.map(lambda *each: jnp.stack(each), layer, *layers)
        stacks = stacks or [np.empty((count, *leaf.shape), leaf.dtype) for leaf in leaves]
        for number, leaf in enumerate(leaves):
            wide = jnp.promote_types(stacks[number].dtype, leaf.dtype)
            stacks[number] = stacks[number].astype(wide, copy=False)
            stacks[number][i] = leaf
    return jax.tree.unflatten(treedef, stacks)


def pack(
    params: Params, config: TransformerConfig, store: Store, narrow: jnp.dtype | None,
    partitioning: Partitioning | None, output_tokens: Sequence[int] | None = None,
) -> PackedTransformer:  # fmt: skip
    """Decode parameters from a checkpoint tree; see :class:`Packer`.

    Args:
      output_tokens: those that the model is to generate; None for all.
    """
    packer = Packer(config, store, narrow, partitioning)
    # The large ones first, while little else is in memory: packing needs a copy.
    embedding = packer.embedding(params["token_embedder"])
    logits, bias, generated = packer.logits(params, output_tokens)
    encoder = cross_kv = kv_bias = None
    if config.encoder is not None:
        cross_kv, kv_bias = packer.cross_kv(params["decoder"])
        own, projection = None, None
        if (path := tree.encoder_embedder(config)) is not None:
            table = params
            for name in path.split("/"):
                table = table[name]
            own = packer.embedding(table)
        if config.encoding_width is not None:
            kernel = params["encoder"]["input_projection"]["kernel"]
            projection = packer.encoder_kernel("input_projection", kernel)
        stack = packer.stack("encoder", params, packer.encoder_kernel)
        encoder = PackedEncoder(
            own, **stack, input_projection=projection, **packer.convolutions(params["encoder"])
        )
    return packer.placed(PackedTransformer(
        encoder=encoder, embedding=embedding, cross_kv=cross_kv, kv_bias=kv_bias,
        **packer.stack("decoder", params, packer.decoder_kernel),
        logits=logits, logits_bias=bias, output_tokens=generated,
    ))  # fmt: skip
