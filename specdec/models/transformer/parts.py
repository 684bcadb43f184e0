"""The parts of a layer as a decode step computes them, on packed parameters.

A part is a norm, a product or attention, and a residual; what it does is said by its stack's config
and by which parameters there are. ``fused`` computes several of these at once where it can.

Where norms are after each part, what is added to is what was normalised. So a norm stands before
each part all the same; only what is added to differs.

Shapes: B batch, S input length, T block length, M cache length, H heads, G heads of keys and
values, R = H / G, K head_dim, I = H * K, J = G * K, D d_model, F d_ff.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core import platforms
from specdec.core.platforms import Layout
from specdec.core.pytrees import pytree
from specdec.models import attention
from specdec.models import cache as kv
from specdec.models.partitioning import HIDDEN_AXES, MLP_AXES, Partitioning, constrain, ways
from specdec.models.products import exact as exactly
from specdec.models.products import few_tokens, fused, plain
from specdec.models.products.quantized import Kernel
from specdec.models.transformer.arithmetic import ACTIVATIONS, embedding_scale, turned
from specdec.models.transformer.config import Absolute, Rotary, Stack
from specdec.models.transformer.packed import (
    Layers,
    PackedEncoder,
    PackedLayer,
    PackedNorm,
    PackedTransformer,
    layer_of,
)
from specdec.models.transformer.views import View, hidden_padding
from specdec.types import AnyArray

Caches: TypeAlias = tuple[kv.Entries, kv.Entries]  # Keys and values of all layers.
# Attention of the layer of this number to itself: what it makes of states, and its caches.
Attend: TypeAlias = Callable[
    [kv.Number, PackedLayer, Float[Array, "b t d"], Caches], tuple[Float[Array, "b t i"], Caches]
]
Cross: TypeAlias = Callable[[kv.Number, PackedLayer, Float[Array, "b t d"]], Float[Array, "b t i"]]


@pytree
class EncodedInputs:
    """Encoded inputs, as decoding needs them."""

    # Each layer's cross-attention keys and values; these as ``ops.encoded_values`` has them.
    keys: kv.Entries
    values: kv.Entries
    mask: Bool[Array, "b s"]  # Which inputs are no filler.
    output: Float[Array, "b s d"]  # The encoder's, which a draft may start from.


def products_of(layout: Layout, exact: bool = False) -> ModuleType:
    """The products of a layout: ``few_tokens.py``, ``exact.py`` or ``plain.py``."""
    if layout == "in_out":
        return plain
    return exactly if exact else few_tokens


def hidden(x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """The residual stream, laid out on a mesh."""
    return constrain(x, HIDDEN_AXES)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a stack's layers."""

    stack: Stack
    layout: Layout
    partitioning: Partitioning | None
    exact: bool = False  # See :meth:`TransformerModel.exactly`.

    @property
    def ops(self) -> ModuleType:
        """See :func:`products_of`."""
        return products_of(self.layout, self.exact)

    def embedded(
        self, table: Kernel | None, tokens: Int[Array, "b t"], dtype: jnp.dtype, *, scaled: bool
    ) -> Float[Array, "b t d"]:
        """The tokens' rows of an embedding."""
        # Else widening is fused with what follows, which then may round otherwise.
        rows = jax.lax.optimization_barrier(self.ops.embed(table, tokens).astype(dtype))
        if not scaled:
            return hidden(rows)
        return self.ops.in_memory(hidden(rows) * embedding_scale(self.stack.d_model, dtype))

    def with_positions(
        self, packed: PackedEncoder | PackedTransformer, x: Float[Array, "b t d"],
        positions: Int[AnyArray, "#b t"],
    ) -> Float[Array, "b t d"]:  # fmt: skip
        """Embedded tokens with their positions, where these are absolute."""
        if not isinstance(self.stack.positions, Absolute):
            return x
        # Only filler and finished rows, whose output is fixed, can be beyond the last position.
        last = self.stack.positions.count - 1
        positions = jnp.broadcast_to(jnp.clip(positions, 0, last), x.shape[:2])
        x = hidden(x + self.ops.embed(packed.positions, positions).astype(x.dtype))
        x = self.ops.in_memory(x)
        if packed.embedding_norm is None:
            return x
        return jax.lax.optimization_barrier(hidden(self.normed(x, packed.embedding_norm)))

    def fuses(self, x: Float[Array, "b t d"], *others: Kernel) -> bool:
        """Whether ``fused`` does products of x with such others: all have its dtype.

        It knows neither rotation nor shared keys.
        """
        return (
            platforms.current().fused
            and self.layout == "in_out"
            and self.partitioning is None
            and not isinstance(self.stack.positions, Rotary)
            and x.shape[0] * x.shape[1] <= fused.MOST_ROWS
            and all(isinstance(each, jax.Array) and each.dtype == x.dtype for each in others)
        )

    def normed(self, x: Float[Array, "b t d"], norm: PackedNorm | None) -> Float[Array, "b t d"]:
        """x normalised; x itself for no norm."""
        if norm is None:
            return x
        epsilon, kept = self.stack.norm.epsilon, self.ops.in_memory
        if norm.norm_bias is None:
            inverse = self.ops.inverse_root(self.ops.mean_square(x) + epsilon)
            return (kept(x * inverse) * norm.norm_scale).astype(x.dtype)
        centred = kept(x.astype(jnp.float32) - self.ops.mean(x))
        inverse = self.ops.inverse_root(self.ops.mean_square(centred) + epsilon)
        return kept((centred * inverse).astype(x.dtype)) * norm.norm_scale + norm.norm_bias

    def _before(self, norm: PackedNorm | None) -> PackedNorm | None:
        """Norm that is done within the product after it, of the norm that a layer has there."""
        return None if self.stack.norm.place == "after" else norm

    def entering(
        self, x: Float[Array, "b t d"], norm: PackedNorm | None, part: kv.Number = 1
    ) -> Float[Array, "b t d"]:
        """The states a part adds to: the output of the part before it, with the norm between.

        Args:
          part: 0 for the first one, before which nothing is.
        """
        if self.stack.norm.place != "after" or norm is None:
            return x
        if isinstance(part, int) and part == 0:
            return x
        normed = jax.lax.optimization_barrier(hidden(self.normed(x, norm)))
        return normed if isinstance(part, int) else jnp.where(part == 0, x, normed)

    def product_of_normed(
        self, x: Float[Array, "b t d"], norm: PackedNorm | None, kernel: Kernel,
        bias: Float[Array, " i"] | None = None,
    ) -> Float[Array, "b t i"]:  # fmt: skip
        """norm(x) kernel + bias."""
        if self.fuses(x, kernel):
            return fused.product_of_normed(x, self._fused_norm(norm), kernel, bias)
        product = self.ops.product(kernel, self.normed(x, norm))
        return product if bias is None else self.ops.in_memory(product + bias)

    def _fused_norm(self, norm: PackedNorm | None) -> fused.Norm | None:
        if norm is None:
            return None
        return fused.Norm(norm.norm_scale, norm.norm_bias, self.stack.norm.epsilon)

    def added(
        self, x: Float[Array, "b t d"], h: Float[Array, "b t i"], kernel: Kernel | None,
        bias: Float[Array, " d"] | None = None, norm: PackedNorm | None = None,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        """x + norm(h kernel + bias)."""
        assert kernel is not None
        if norm is None and self.fuses(x, h, kernel):
            return fused.added(x, h, kernel, bias)
        part = self.ops.in_memory(self.ops.product(kernel, h))
        if bias is None and norm is None:
            return self.ops.in_memory(hidden(x + part))
        # Once in memory; else each norm would add up all that came before it again.
        if norm is not None:
            return jax.lax.optimization_barrier(hidden(x + self.normed(part, norm)))
        return jax.lax.optimization_barrier(hidden(x + self.ops.in_memory(part + bias)))

    def split(self, products: Float[Array, "b t i"], count: int, axis: str) -> list[Array]:
        """The products of joined kernels apart; the mesh cuts each along ``axis``."""
        return self.ops.split(products, count, ways(self.partitioning, axis))

    def queries_keys_values(
        self, layer: PackedLayer, x: Float[Array, "b t d"], by: Float[Array, "b t k/2"] | None
    ) -> tuple[Float[Array, "b t i"], Float[Array, "b t j"], Float[Array, "b t j"]]:
        """Queries, scaled, keys and values; queries and keys turned, if ``by`` says how far."""
        stack, norm = self.stack, self._before(layer.self_norm)
        if layer.qkv_bias is None:
            joined = self.product_of_normed(x, norm, layer.self_qkv)
        else:
            joined = self.ops.product(layer.self_qkv, self.normed(x, norm))
        count = stack.num_heads // stack.kv_heads
        apart = self.split(joined, count + 2, "joined_kv")
        if layer.qkv_bias is not None:  # A mesh cuts joined kernels, but each bias for itself.
            biased = (each + layer.qkv_bias[i] for i, each in enumerate(apart))
            apart = [self.ops.in_memory(each) for each in biased]
        *queries, key, value = apart
        query = queries[0]
        if count > 1:  # The heads of a key beside each other, as the output's kernel has them.
            query = jnp.stack([self._heads(each) for each in queries], axis=3)
            query = query.reshape(*x.shape[:2], -1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self.normed_heads(query, layer.query_norm)
            key = self.normed_heads(key, layer.key_norm)
        if by is not None:
            query, key = (
                turned(self._heads(each), by, self.ops.in_memory).reshape(each.shape)
                for each in (query, key)
            )
        return self._scaled(query), key, value

    def _scaled(self, query: Float[Array, "b t i"]) -> Float[Array, "b t i"]:
        scale = self.stack.query_scale
        return query if scale == 1 else query * scale

    def _heads(self, x: Float[Array, "b t i"]) -> Float[Array, "b t h k"]:
        """Heads on an axis of their own."""
        return x.reshape(*x.shape[:2], -1, self.stack.head_dim)

    def normed_heads(self, x: Float[Array, "b t i"], norm: PackedNorm) -> Float[Array, "b t i"]:
        """Each head normalised for itself."""
        return self.normed(self._heads(x), norm).reshape(x.shape)

    def attend(
        self, query: Float[Array, "b t i"], keys: Float[Array, "b g m k"],
        values: Float[Array, "b g m k"], bias: Float[Array, "#b #h #t m"], *,
        encoded: bool = False,
    ) -> Float[Array, "b t i"]:  # fmt: skip
        """Attention of queries to keys and values, perhaps an encoder's."""
        heads, softcap = self.stack.num_heads, self.stack.attention_softcap
        return attention.attend(
            self.ops, heads, query, keys, values, bias, softcap, encoded=encoded
        )

    def attention_within(
        self, layer: PackedLayer, x: Float[Array, "b t d"], view: View
    ) -> Float[Array, "b t i"]:
        """Self-attention of whole texts."""
        query, key, value = self.queries_keys_values(layer, x, view.by)
        heads = self.stack.kv_heads
        key, value = (attention.entries(each, heads) for each in (key, value))
        return self.attend(query, key, value, view.bias)

    def self_attention(
        self, number: kv.Number, layer: PackedLayer, x: Float[Array, "b t d"], caches: Caches,
        view: View, at: Int[Array, " b"], encoded: EncodedInputs | None = None,
        paths: Int[Array, "b t d"] | None = None,
    ) -> tuple[Float[Array, "b t i"], Caches]:  # fmt: skip
        """Attention of a block to itself and the cache; all layers' keys and values with it.

        Args:
          number: the layer's.
          encoded: attended to with the same softmax, if given.
          paths: of each token those of the block that it follows, in order, and itself; then others
            that ``view`` hides. Each token attends to these as if they were the whole block. None
            where all attend to the block as it is.
        """
        if isinstance(number, int):
            old = [kv.of_layer(each, number) for each in caches]
        if isinstance(number, int) and self.fuses(x, *old):
            bias = None if layer.qkv_bias is None else layer.qkv_bias.reshape(-1)
            norm = self._before(layer.self_norm)
            joined = self.product_of_normed(x, norm, layer.self_qkv, bias)
            scale = self.stack.query_scale
            h, *own = fused.self_attention(joined, old[0], old[1], view.bias, at, scale)
            keys, values = (kv.with_layer(a, number, b) for a, b in zip(caches, own, strict=True))
            return h, (keys, values)
        query, key, value = self.queries_keys_values(layer, x, view.by)
        heads = jax.tree.leaves(caches[0])[0].shape[-3]
        own = [attention.entries(each, heads) for each in (key, value)]
        if paths is None:
            caches = _written(caches, number, own, at)
            keys, values = (kv.of_layer(each, number) for each in caches)
            return self._attending(number, query, keys, values, view.bias, encoded), caches

        # Of this layer alone: in a loop all would be copied.
        layer_caches = tuple((kv.of_layer(each, number),) for each in caches)

        def attend(i: Int[Array, ""], carry: tuple[Array, Caches]) -> tuple[Array, Caches]:
            found, caches = carry
            path = jax.lax.dynamic_index_in_dim(paths, i, 1, keepdims=False)[:, None, :, None]
            along = [jnp.take_along_axis(each, path, axis=2) for each in own]
            caches = _written(caches, 0, along, at)
            one, bias = (
                jax.lax.dynamic_slice_in_dim(each, i, 1, axis)
                for each, axis in ((query, 1), (view.bias, 2))
            )
            (key,), (value,) = caches
            h = self._attending(number, one, key, value, bias, encoded)
            return jax.lax.dynamic_update_slice_in_dim(found, h, i, 1), caches

        start = jnp.zeros_like(query), layer_caches
        h, _ = jax.lax.fori_loop(0, query.shape[1], attend, start)
        return h, _written(caches, number, own, at)

    def _attending(
        self, number: kv.Number, query: Float[Array, "b t i"], key: Float[Array, "b g m k"],
        value: Float[Array, "b g m k"], bias: Float[Array, "#b #h #t m"],
        encoded: EncodedInputs | None,
    ) -> Float[Array, "b t i"]:  # fmt: skip
        """Attention to a layer's keys and values, and to encoded inputs if given."""
        if encoded is None:
            return self.attend(query, key, value, bias)
        padding = hidden_padding(encoded.mask)
        return attention.attend_to_both(
            self.ops, self.stack.num_heads, query, (key, value, bias),
            (kv.of_layer(encoded.keys, number), kv.of_layer(encoded.values, number), padding),
            self.stack.attention_softcap,
        )  # fmt: skip

    def cross_attention(
        self, number: kv.Number, layer: PackedLayer, x: Float[Array, "b t d"],
        encoded: EncodedInputs,
    ) -> Float[Array, "b t i"]:  # fmt: skip
        """Attention of the layer of this number to an encoder's output."""
        norm = self._before(layer.cross_norm)
        assert layer.cross_query is not None
        query = self.product_of_normed(x, norm, layer.cross_query, layer.query_bias)
        # Rows that share an encoding are as tokens of one row to it.
        query = query.reshape(len(encoded.mask), -1, query.shape[-1])
        keys, values = (kv.of_layer(each, number) for each in (encoded.keys, encoded.values))
        bias = hidden_padding(encoded.mask)
        if self.fuses(query, keys, values):
            h = fused.cross_attention(query, keys, values, bias, self.stack.query_scale)
        else:
            (query,) = self.split(query, 1, "joined_kv")
            h = self.attend(self._scaled(query), keys, values, bias, encoded=True)
        return h.reshape(*x.shape[:2], -1)

    def feed_forward(self, layer: PackedLayer, x: Float[Array, "b t d"]) -> Float[Array, "b t f"]:
        """The hidden units."""
        act, gated = ACTIVATIONS[self.stack.activation], self.stack.gated
        norm = self._before(layer.mlp_norm)
        if self.fuses(x, layer.wi) and self.stack.activation != "gelu_exact":  # It is of erf.
            own = self._fused_norm(norm)
            return fused.product_of_normed(x, own, layer.wi, layer.wi_bias, act=act, gated=gated)
        inner = self.product_of_normed(x, norm, layer.wi, layer.wi_bias)
        if gated:
            gate, inner = self.split(inner, 2, "mlp")
            inner = self.ops.in_memory(act(gate)) * inner
        else:
            inner = act(inner)
        return constrain(inner, MLP_AXES)

    def through(
        self, layers: Layers, x: Float[Array, "b t d"], caches: Caches, attend: Attend,
        cross: Cross | None = None,
    ) -> tuple[Float[Array, "b t d"], Caches]:  # fmt: skip
        """States behind all layers, and their caches.

        Each layer is attention, ``cross``-attention, and feed-forward. Stacked ones are a loop.
        """

        def through_one(
            number: kv.Number, layer: PackedLayer, x: Float[Array, "b t d"], caches: Caches
        ) -> tuple[Float[Array, "b t d"], Caches]:
            x = self.entering(x, layer.self_norm, number)
            h, caches = attend(number, layer, x, caches)
            x = self.added(x, h, layer.self_out, layer.out_bias, layer.self_post_norm)
            if cross is not None:
                x = self.entering(x, layer.cross_norm)
                h = cross(number, layer, x)
                x = self.added(x, h, layer.cross_out, layer.cross_bias, layer.cross_post_norm)
            x = self.entering(x, layer.mlp_norm)
            h = self.feed_forward(layer, x)
            return self.added(x, h, layer.wo, layer.wo_bias, layer.mlp_post_norm), caches

        if isinstance(layers, tuple):
            for number, layer in enumerate(layers):
                x, caches = through_one(number, layer, x, caches)
            return x, caches
        return jax.lax.fori_loop(
            0, self.stack.num_layers,
            lambda number, carry: through_one(number, layer_of(layers, number), *carry),
            (x, caches),
        )  # fmt: skip

    def logits(
        self, x: Float[Array, "b t d"], norm: PackedNorm, kernel: Kernel, tied: bool,
        bias: Float[Array, " v"] | None,
    ) -> Float[Array, "b t v"]:  # fmt: skip
        """norm(x) kernel + bias in float32; a ``tied`` kernel is an embedding."""
        if self.fuses(x, kernel):
            own = self._fused_norm(norm)
            return fused.product_of_normed(x, own, kernel, bias, tied=tied, dtype=jnp.float32)
        normed = self.normed(x, norm)
        kernel = self.ops.tied(kernel) if tied else kernel
        logits = self.ops.product(kernel, normed, jnp.float32)
        return logits if bias is None else self.ops.in_memory(logits + bias)


def _written(
    caches: Caches, number: kv.Number, own: Sequence[Float[Array, "b g t k"]], at: Int[Array, " b"]
) -> Caches:
    """Caches with a layer's new keys and values."""
    keys, values = (kv.write(a, number, b, at) for a, b in zip(caches, own, strict=True))
    # One update in place; fused into its readers it would be several, and copies.
    return jax.lax.optimization_barrier((keys, values))
