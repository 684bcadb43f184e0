"""The network as the decode loop's :class:`~specdec.models.base.Model`: packed weights and a cache.

It computes what ``network.py`` computes, on weights that ``packing.py`` fused at load. On CPU each
kernel is stored out-features first, which ``few_tokens.py`` reads once for all tokens. On a mesh
attention is cut by heads and the feed-forward by its hidden width: each device computes its share
of a product, and what the next part reads is their sum.

A text is the encoder's input, encoded once: every layer's cross-attention keys and values are one
product. Without an encoder it is the decoder's prefix: prefilled in one call, and never output.

Shapes: B batch, S input length, T block length, M cache length, G heads of keys and values,
K head_dim, J = G * K, D d_model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from specdec.core import platforms
from specdec.core.platforms import Layout
from specdec.core.standardize import spread
from specdec.core.topology import CHAIN, Forest, Order
from specdec.models import attention, filler
from specdec.models import cache as kv
from specdec.models.base import prompt_of
from specdec.models.partitioning import Partitioning, constrain, ways
from specdec.models.placing import all_finite
from specdec.models.products.quantized import Kernel, int8_rows
from specdec.models.stores import store_of
from specdec.models.transformer import packed as stored
from specdec.models.transformer import packing
from specdec.models.transformer.arithmetic import (
    ACTIVATIONS,
    capped,
    check_encoding,
    windows,
)
from specdec.models.transformer.config import Stack, TransformerConfig
from specdec.models.transformer.packed import (
    PackedEncoder,
    PackedLayer,
    PackedNorm,
    PackedTransformer,
    axis_sizes,
)
from specdec.models.transformer.packing import Packer
from specdec.models.transformer.parts import Caches, EncodedInputs, Parts, hidden, products_of
from specdec.models.transformer.views import Block, views_of
from specdec.types import (
    AnyArray,
    Distribution,
    Encoded,
    Encoding,
    Params,
    Prompt,
    Start,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class TransformerModel:
    """A Transformer that can be extended, committed and rolled back.

    Raises:
      ValueError: the mesh does not divide its heads of keys, d_ff or vocabulary.
    """

    config: TransformerConfig  # ``config.dtype`` is that of activations and cache.
    # How packed kernels are stored; as is best for the current platform unless given.
    layout: Layout = dataclasses.field(default_factory=lambda: platforms.current().layout)
    # How it lies on a mesh of devices; None for one device. Only "in_out" kernels can be cut.
    partitioning: Partitioning | None = None
    exact: bool = False  # See :meth:`exactly`.

    def __post_init__(self):
        if self.partitioning is None:
            return
        if self.layout != "in_out":
            raise ValueError(f'A mesh can cut "in_out" kernels, not {self.layout!r} ones.')
        self.partitioning.check(self.axis_sizes)

    @property
    def axis_sizes(self) -> dict[str, dict[str, int]]:
        """Sizes along each logical axis that a mesh may cut, by their names."""
        return axis_sizes(self.config)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def input_vocab_size(self) -> int:
        return self.config.encoder_vocab_size or self.vocab_size

    @property
    def input_shape(self) -> tuple[int, int] | None:
        return self.config.input_shape

    @property
    def image_ids(self) -> tuple[int, ...]:
        return self.config.image_ids

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        config = self.config
        return () if config.eos_id is None else (config.eos_id, *config.more_eos_ids)

    @property
    def max_positions(self) -> int | None:
        return self.config.max_positions

    @property
    def reads_prefix(self) -> bool:
        return self.config.reads_prefix

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of activations and cache; kernels and embedding may have fewer bits."""
        return jnp.dtype(self.config.dtype)

    @property
    def ops(self) -> ModuleType:
        """The products of its layout."""
        return products_of(self.layout)

    def exactly(self) -> TransformerModel:
        """This model, whose logits of a token are the same bits in every call.

        Neither other tokens of the call change them nor other rows, nor sizes of arrays: only the
        row's own tokens do.

        Raises:
          ValueError: not on CPU, where alone we know the order of every sum.
        """
        if self.layout != "out_in":
            raise ValueError(
                "exact needs programs for CPU: elsewhere the compiler chooses the order of sums, "
                "by the batch and by sizes. Leave exact out; audit=True says which tokens it may "
                "flip."
            )
        return dataclasses.replace(self, exact=True)

    # Parameters.

    def pack(
        self, params: Params, output_tokens: Sequence[int] | None = None,
        narrow: str | None = None, *, int8: bool = False,
    ) -> PackedTransformer:  # fmt: skip
        """Decode parameters from a checkpoint tree; see :func:`packing.pack`.

        Args:
          int8: all kernels and the embedding have 8 bits, an encoder's too.

        Raises:
          ValueError: 8 bits on a mesh that cuts kernels.
        """
        ops, store = self.ops, store_of(self.ops)
        if int8:
            self.check_whole()

            def packed(kernel: Array, pack=ops.pack) -> Kernel:
                return ops.quantize(pack(kernel), 8, 0)

            whole = functools.partial(packed, pack=ops.pack_whole)
            store = dataclasses.replace(store, kernel=packed, whole=whole, embedding=int8_rows)
        return packing.pack(
            params, self.config, store, jnp.dtype(narrow) if narrow else None, self.partitioning,
            output_tokens,
        )  # fmt: skip

    def restricted(
        self, packed: PackedTransformer, params: Params, output_tokens: Sequence[int],
        narrow: str | None,
    ) -> PackedTransformer:  # fmt: skip
        """Packed parameters with the logits of some tokens only; all else is shared.

        Args:
          params, output_tokens, narrow: as in :meth:`pack`; logits too large for ``narrow`` are
            stored as they are.
        """
        fewer = jnp.dtype(narrow) if narrow else None
        packer = Packer(self.config, store_of(self.ops), fewer, self.partitioning)
        logits, bias, generated = packer.logits(params, output_tokens)
        if narrow and not all_finite(logits):
            return self.restricted(packed, params, output_tokens, None)
        return packer.placed(
            dataclasses.replace(packed, logits=logits, logits_bias=bias, output_tokens=generated)
        )

    def step_params(self, params: PackedTransformer) -> PackedTransformer:
        """Parameters that a decode step reads: no embedding, unless it is the logits' too."""
        return dataclasses.replace(
            params, embedding=params.embedding if params.logits is None else None,
            output_tokens=None, encoder=None, cross_kv=None, kv_bias=None, positions=None,
        )  # fmt: skip

    def quantized(
        self, params: PackedTransformer, bits: int, group: int, *, of_target: bool
    ) -> tuple[TransformerModel, PackedTransformer]:
        """The decoder's kernels, and the logits', in few bits; all else is shared."""
        self.check_whole()
        return self, stored.quantized(params, self.ops, bits, group, of_target=of_target)

    def encodes(self, params: PackedTransformer) -> bool:
        """Whether it reads inputs with an encoder of its own, not its target's."""
        return params.encoder is not None

    def kernels(self, params: PackedTransformer) -> list[dict[str, Kernel]]:
        """Each decoder layer's that are there, by name; the rest are norms and biases."""
        return stored.kernels(params)

    def logical_axes(self, params: T) -> T:
        """The axes of each array of "in_out" parameters, or of a part of them, in the same tree."""
        return stored.logical_axes(params)

    def check_whole(self) -> None:
        """Raises ValueError on a mesh that cuts kernels, which weights of few bits do not allow."""
        cut = [axis for axis in self.axis_sizes if ways(self.partitioning, axis) > 1]
        if cut:
            raise ValueError(
                f"Weights of few bits cannot be cut, and this mesh cuts {', '.join(cut)}: scales "
                "would be apart from what they belong to. Choose a mesh whose model axis is 1."
            )

    # Texts.

    def prompt(self, tokens: Shaped[AnyArray, "b s ..."], lengths: Int[AnyArray, " b"]) -> Prompt:
        return prompt_of(tokens, lengths, self.config.start_id, reads_prefix=self.reads_prefix)

    def start(
        self, params: PackedTransformer, prompt: Prompt, max_len: int,
        given: Encoded | None = None,
    ) -> Start:  # fmt: skip
        """Runs the encoder, projects its output to cross-attention K/V, prefills the prefix.

        Raises:
          ValueError: it starts from a target's encoding, and is given none or one of another width.
        """
        batch, before = prompt.batch_size, prompt.prefix.shape[1] - 1
        with self._resolving(batch):
            if self.reads_prefix:
                encoded = ()
            elif params.cross_kv is None:
                encoded = given  # The encoding of the same model in more bits.
            elif params.encoder is None:  # The target's encoder is its own, too.
                assert isinstance(given, EncodedInputs)
                encoded = self.attended(params, given.output, given.mask)
            else:
                output, mask = self._encoding(params, prompt, given)
                encoded = self.attended(params, output, mask)
            cache = self.empty_cache(batch, filler.shared(before) + max_len)
        return self.prefilled(params, encoded, cache, prompt)

    def prefilled(
        self, params: PackedTransformer, encoded: Encoded, cache: kv.KVCache, prompt: Prompt
    ) -> Start:
        """An empty cache filled with a prefix but for its last token, without logits."""
        before = jnp.asarray(prompt.prefix[:, :-1])
        states = jnp.zeros((*before.shape, self.config.d_model), self.dtype)
        if before.shape[1]:
            states, cache = self.extend(params, encoded, cache, before)
            cache = self.commit(cache, None, prompt.prefix_lengths - 1)
        return Start(encoded, cache, prompt.last_token, states)

    def _encoding(
        self, params: PackedTransformer, prompt: Prompt, given: EncodedInputs | None
    ) -> tuple[Float[Array, "b s d"], Bool[Array, "b s"]]:
        """The encoder's output, and which of it is no filler."""
        found = prompt.encoding
        if found is not None and given is None:  # It is the target's.
            places = jnp.arange(found.output.shape[1])
            return jnp.asarray(found.output, self.dtype), places < found.lengths[:, None]
        mask = prompt.input_mask
        if self.config.features is not None:
            mask = mask[:, ::2]
        return self._encode(params, prompt, mask, given), mask

    def encode(self, params: PackedTransformer, prompt: Prompt) -> Encoding:
        """The encoder's output, from which several decodes of the same inputs can begin."""
        with self._resolving(prompt.batch_size):
            output, mask = self._encoding(params, prompt, None)
        return Encoding(output, jnp.sum(mask, axis=1, dtype=jnp.int32))

    def _encode(
        self, params: PackedTransformer, prompt: Prompt, mask: Bool[Array, "b s"],
        given: EncodedInputs | None,
    ) -> Float[Array, "b s d"]:  # fmt: skip
        """The encoder's output."""
        encoder, inputs, encoding = params.encoder, jnp.asarray(prompt.inputs), None
        stack = self.config.encoder
        assert encoder is not None
        assert stack is not None
        if self.config.encoding_width is not None and given is not None:
            encoding = given.output[:, : inputs.shape[1]]
        check_encoding(self.config.encoding_width, encoding)
        parts = self._parts(stack)
        if self.config.features is not None:
            x = self._convolved(encoder, inputs)
        else:
            table = params.embedding if encoder.embedding is None else encoder.embedding
            x = self._embedded(stack, table, inputs)
        if encoder.input_projection is not None:
            x = hidden(x + parts.ops.product(encoder.input_projection, encoding))
        x = parts.with_positions(encoder, x, np.arange(x.shape[1])[None])
        views = views_of(stack).encoder(encoder.relpos, mask)

        def attend(number, layer, x, caches):
            return parts.attention_within(layer, x, views(number, layer.relpos)), caches

        x, _ = parts.through(encoder.layers, x, ((), ()), attend)
        return parts.normed(x, encoder.final_norm)

    def _convolved(
        self, encoder: PackedEncoder, features: Float[Array, "b 2*s m"]
    ) -> Float[Array, "b s d"]:
        """States of every second frame of sound, behind two convolutions."""
        x, act = features.astype(self.dtype), ACTIVATIONS["gelu_exact"]
        product = products_of(self.layout, self.exact).product
        for kernel, bias, stride in (
            (encoder.conv1, encoder.conv1_bias, 1), (encoder.conv2, encoder.conv2_bias, 2)
        ):  # fmt: skip
            x = hidden(act(product(kernel, windows(x, stride)) + bias))
        return x

    def attended(
        self, params: PackedTransformer, output: Float[Array, "b s d"], mask: Bool[Array, "b s"]
    ) -> EncodedInputs:
        """Keys and values of an encoder's output, for each layer's cross-attention.

        Args:
          params: their ``cross_kv``, ``kv_bias`` and ``layers`` are read.
        """
        count, parts = self.config.num_decoder_layers, self._parts(self.config.decoder)
        products = parts.ops.product(params.cross_kv, output)
        if not isinstance(params.layers, tuple):
            return self._shared(EncodedInputs(*self._stacked(params, products), mask, output))
        split = parts.split(products, 2 * count, "joined_kv")
        if params.kv_bias is not None:
            split = [each + params.kv_bias[i] for i, each in enumerate(split)]
        if self.config.merged_attention and self.config.decoder.query_key_norms:
            norms = [layer.key_norm for layer in params.layers]
            keys = [
                parts.normed_heads(key, norm)
                for key, norm in zip(split, norms, strict=False)  # Behind them the values.
                if norm is not None
            ]
            split = [*keys, *split[count:]]
        heads = self._cached_heads(len(output))
        found = [attention.entries(each, heads) for each in split]
        return self._shared(EncodedInputs(tuple(found[:count]), tuple(found[count:]), mask, output))

    def _shared(self, encoded: EncodedInputs) -> EncodedInputs:
        """Encoded inputs as steps read them, of a size that a decode loop shares with others."""
        size = encoded.mask.shape[1]
        more = filler.shared(size) - size

        def longer(leaf: Array) -> Array:
            return jnp.pad(leaf, [*[(0, 0)] * (leaf.ndim - 2), (0, more), (0, 0)])

        if more:
            mask = jnp.pad(encoded.mask, ((0, 0), (0, more)))
            parts = encoded.keys, encoded.values, encoded.output
            keys, values, output = jax.tree.map(longer, parts)
            encoded = EncodedInputs(keys, values, mask, output)
        values = jax.tree.map(self.ops.encoded_values, encoded.values)
        return dataclasses.replace(encoded, values=values)

    def _stacked(self, params: PackedTransformer, products: Float[Array, "b s j"]) -> Caches:
        """All layers' keys, and their values, of their joined kernels' products."""
        assert isinstance(params.layers, PackedLayer)
        stack, (batch, size, _) = self.config.decoder, products.shape
        apart = products.reshape(batch, size, 2, stack.num_layers, stack.kv_heads, stack.head_dim)
        if params.kv_bias is not None:
            apart += params.kv_bias.reshape(apart.shape[2:])
        keys, values = apart[:, :, 0], apart[:, :, 1]
        if self.config.merged_attention and params.layers.key_norm is not None:
            scale = params.layers.key_norm.norm_scale[:, None]
            keys = self._parts(stack).normed(keys, PackedNorm(scale))
        keys, values = (each.transpose(0, 2, 3, 1, 4) for each in (keys, values))
        return keys, values

    # Steps.

    def extend(
        self, params: PackedTransformer, encoded: Encoded, cache: kv.KVCache,
        tokens: Int[Array, "b t"], topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        x = self.embed(params, tokens)
        return self.extend_embedded(params, encoded, cache, x, topology, after=after)

    def extend_embedded(
        self, params: PackedTransformer, encoded: Encoded | None, cache: kv.KVCache,
        x: Float[Array, "b t d"], topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        """:meth:`extend` of rows of the embedding, or of what stands for such.

        ``encoded`` is None where a decoder attends to none.
        """
        batch, count, _ = x.shape
        more = filler.amount(batch, count)
        if more:
            topology = topology.with_filler(after + count, more)
        if isinstance(topology, Forest):
            topology = topology.over(cache.max_len)
        with self._resolving(batch):
            x, cache = self._extend(params, encoded, cache, filler.filled(x, more), topology, after)
        return filler.without(x, more), cache

    def _extend(
        self, params: PackedTransformer, encoded: Encoded | None, cache: kv.KVCache,
        x: Float[Array, "b t d"], topology: Order, after: int,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        """Keys and values of a block, whose last hidden states are x."""
        cfg, parts, paths = self.config, self._parts(self.config.decoder), None
        if self.exact and not topology.is_chain:
            assert not isinstance(topology, Forest)
            assert not after
            topology, paths = kv.apart(topology, cache.length, cache.max_len)
        block = Block(topology, cache.length, cache.max_len, x.shape[1], after)
        views = views_of(cfg.decoder).decoder(params.relpos, block)
        if params.positions is not None:
            x = parts.with_positions(params, x, block.positions)
        merged, crossed = (encoded or None, None) if cfg.merged_attention else (None, encoded)

        def attend(number, layer, x, caches):
            view, at = views(number, layer.relpos), cache.length + after
            return parts.self_attention(number, layer, x, caches, view, at, merged, paths)

        def cross(number, layer, x):
            return parts.cross_attention(number, layer, x, cast(EncodedInputs, crossed))

        caches = cache.keys, cache.values
        x, caches = parts.through(params.layers, x, caches, attend, cross if crossed else None)
        return x, kv.KVCache(*caches, cache.length)

    def empty_cache(self, batch: int, max_len: int) -> kv.KVCache:
        """An empty cache for ``max_len`` tokens a row."""
        size = filler.cache_size(batch, max_len)
        heads = self._cached_heads(batch)
        width = self.config.decoder.kv_heads * self.config.head_dim // heads
        depth = self.config.num_decoder_layers
        stacked = store_of(self.ops).stacked
        with self._resolving(batch):
            return kv.init_cache(depth, batch, heads, size, width, self.dtype, stacked=stacked)

    def _cached_heads(self, batch: int) -> int:
        """Heads of a cache of so many rows; 1 if they are side by side (``attention.py``)."""
        heads, platform = self.config.decoder.kv_heads, platforms.current()
        if heads < self.config.num_heads or self.config.merged_attention:
            return heads  # Each has several rows of queries as it is, or two softmaxes' parts.
        few = batch * heads * platform.tile <= platform.tile_rows
        whole = ways(self.partitioning, "heads") == 1
        return 1 if platform.heads_side_by_side and few and whole else heads

    def embed(self, params: PackedTransformer, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """The tokens' rows of the embedding."""
        with self._resolving(len(tokens)):
            return self._embedded(self.config.decoder, params.embedding, tokens)

    def _embedded(
        self, stack: Stack, table: Kernel | None, tokens: Int[Array, "b t"]
    ) -> Float[Array, "b t d"]:
        return self._parts(stack).embedded(
            table, tokens, self.dtype, scaled=self.config.scaled_embedding
        )

    def logits(
        self, params: PackedTransformer, hidden: Float[Array, "b t d"]
    ) -> Float[Array, "b t v"]:
        batch, count, _ = hidden.shape
        more = filler.amount(batch, count)
        with self._resolving(batch):
            cut = "vocab" if params.output_tokens is None else None
            logits = self._logits(params, filler.filled(hidden, more))
            logits = constrain(filler.without(logits, more), ("batch", "length", cut))
            # Gathered once: all that is made of them is small, and not cut by vocabulary.
            return constrain(logits, ("batch", "length", None))

    def _logits(self, params: PackedTransformer, x: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        cfg, tied = self.config, params.logits is None
        kernel = params.embedding if tied else params.logits
        assert kernel is not None
        parts, bias = self._parts(cfg.decoder), params.logits_bias
        logits = parts.logits(x, params.final_norm, kernel, tied, bias)
        logits = logits * cfg.d_model**-0.5 if cfg.logits.scaled else logits
        return capped(logits, cfg.logits.softcap)

    def commit(
        self, cache: kv.KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> kv.KVCache:
        with self._resolving(len(count)):
            return kv.commit(cache, path, count)

    def over_vocabulary(
        self, params: PackedTransformer, distribution: Distribution
    ) -> Distribution:
        if params.output_tokens is None:
            return distribution
        return spread(distribution, params.output_tokens, self.vocab_size)

    def _parts(self, stack: Stack) -> Parts:
        return Parts(stack, self.layout, self.partitioning, self.exact)

    def _resolving(self, batch_size: int) -> contextlib.AbstractContextManager[None]:
        """Context where this model's rules, if it has any, resolve constraints."""
        if self.partitioning is None:
            return contextlib.nullcontext()
        return self.partitioning.resolving(batch_size)
