"""What transformers have in common as the decode loop's :class:`~specdec.models.base.Model`.

An architecture adds its prompt, its layers and its logits. On CPU each kernel is stored
out-features first, which ``few_tokens.py`` reads once for all tokens. On a mesh attention is cut by
heads and the feed-forward by its hidden width: each device computes its share of a product, and
what the next part reads is their sum.

Shapes: B batch, T block length, M cache length, H heads, K head_dim, I = H * K, D d_model.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core import platforms
from specdec.core.platforms import Layout
from specdec.core.standardize import spread
from specdec.core.topology import CHAIN, Forest, Order
from specdec.models import attention, filler
from specdec.models import cache as kv
from specdec.models.partitioning import Partitioning, constrain, ways
from specdec.models.products import few_tokens, fused, plain
from specdec.models.products.quantized import Int8Kernel, Kernel, int8_rows, num_bytes
from specdec.models.stores import Store, pack_logits, store_of
from specdec.types import AnyArray, Distribution, Encoded, Params, Prompt, Start

HIDDEN_AXES = ("batch", "length", "embed")
HEADS_AXES = ("batch", "length", "heads", "kv")
MLP_AXES = ("batch", "length", "mlp")
NEG_INF = -1e10  # T5X's mask value: finite in bfloat16, exp() of it is exactly 0.


@dataclasses.dataclass(frozen=True)
class PackedModel(abc.ABC):
    """A transformer that can be extended, committed and rolled back.

    Its ``params`` are what its ``packing`` makes of a checkpoint: they have ``layers``,
    ``embedding``, ``logits`` and ``output_tokens``.

    Raises:
      ValueError: the mesh does not divide its heads, d_ff or vocabulary.
    """

    config: Any  # Its shape. ``config.dtype`` is that of activations and cache.
    # How packed kernels are stored; as is best for the current platform unless given.
    layout: Layout = dataclasses.field(default_factory=lambda: platforms.current().layout)
    # How it lies on a mesh of devices; None for one device. Only "in_out" kernels can be cut.
    partitioning: Partitioning | None = None

    def __post_init__(self):
        if self.partitioning is None:
            return
        if self.layout != "in_out":
            raise ValueError(f'A mesh can cut "in_out" kernels, not {self.layout!r} ones.')
        self.partitioning.check(self.axis_sizes)

    @property
    @abc.abstractmethod
    def packing(self) -> ModuleType:
        """What fuses and stores a checkpoint's parameters."""

    @property
    def axis_sizes(self) -> dict[str, dict[str, int]]:
        """For each logical axis that a mesh may cut, the sizes along it by what they are called."""
        config = self.config
        return {
            "heads": {"num_heads": config.num_heads},
            "joined_kv": {"num_heads": config.num_heads},  # Cut between heads, not inside one.
            "mlp": {"d_ff": config.d_ff},
            "vocab": {"vocab_size": config.vocab_size},
            "embed": {"d_model": config.d_model},
            "kv": {"head_dim": config.head_dim},
        }

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def input_vocab_size(self) -> int:
        return self.vocab_size

    @property
    def image_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def pad_id(self) -> int:
        return self.config.pad_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        config = self.config
        return () if config.eos_id is None else (config.eos_id, *config.more_eos_ids)

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """Layers of the decoder."""

    @property
    def key_value_heads(self) -> int:
        """Of keys and values: fewer than of queries where some share them."""
        return self.config.num_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Of decoder layers that see a window: how many tokens before its own a token sees."""
        return ()

    @property
    @abc.abstractmethod
    def max_positions(self) -> int | None: ...

    @property
    def reads_prefix(self) -> bool:
        return self.config.reads_prefix

    @abc.abstractmethod
    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt: ...

    @abc.abstractmethod
    def start(
        self, params: Any, prompt: Prompt, max_len: int, given: Encoded | None = None
    ) -> Start: ...

    @property
    def dtype(self) -> jnp.dtype:
        """Of activations and cache; kernels and embedding may have fewer bits."""
        return jnp.dtype(self.config.dtype)

    def pack(
        self, params: Params, output_tokens: Sequence[int] | None = None,
        narrow: str | None = None, *, int8: bool = False,
    ) -> Any:  # fmt: skip
        """Decode parameters from a checkpoint tree; see ``pack`` of the architecture's packing.

        Args:
          int8: all kernels and the embedding have 8 bits, an encoder's too.

        Raises:
          ValueError: 8 bits on a mesh that cuts kernels.
        """
        ops, store = self.ops, self._store
        if int8:
            self.check_whole()

            def packed(kernel: Array, pack=ops.pack) -> Kernel:
                return ops.quantize(pack(kernel), 8, 0)

            whole = functools.partial(packed, pack=ops.pack_whole)
            store = Store(packed, whole, int8_rows, ops.joined)
        return self.packing.pack(
            params, self.config, store, jnp.dtype(narrow) if narrow else None, self.partitioning,
            output_tokens,
        )  # fmt: skip

    def restricted(
        self, packed: Any, params: Params, output_tokens: Sequence[int], narrow: str | None
    ) -> Any:
        """Packed parameters with the logits of some tokens only; all else is shared.

        Args:
          params, output_tokens, narrow: as in :meth:`pack`; logits too large for ``narrow`` are
            stored as they are.
        """
        logits, generated = pack_logits(
            params, self.config, self._store, jnp.dtype(narrow) if narrow else None,
            self.partitioning, output_tokens,
        )  # fmt: skip
        if narrow and not all(jnp.isfinite(a).all() for a in jax.tree.leaves(logits)):
            return self.restricted(packed, params, output_tokens, None)
        return dataclasses.replace(packed, logits=logits, output_tokens=generated)

    @property
    def _store(self) -> Store:
        return store_of(self.ops)

    def step_bytes(self, params: Any) -> int:
        return num_bytes(self.step_params(params))

    def step_params(self, params: Any) -> Any:
        """Those that a decode step reads: without the embedding, unless it is the logits' too."""
        embedding = params.embedding if params.logits is None else None
        return dataclasses.replace(params, embedding=embedding, output_tokens=None)

    def quantized(
        self, params: Any, bits: int, group: int, *, of_target: bool
    ) -> tuple[PackedModel, Any]:
        """The decoder's kernels, and the logits', in few bits; all else is shared."""
        del of_target
        self.check_whole()
        logits = self.ops.tied(params.embedding) if params.logits is None else params.logits
        if bits == 8 and isinstance(logits, Int8Kernel):
            raise ValueError("The model's weights have 8 bits already: choose Quantized(bits=4).")
        quantize = jax.jit(functools.partial(self.ops.quantize, bits=bits, group=group))
        layers = tuple(
            dataclasses.replace(layer, **{name: quantize(k) for name, k in kernels.items()})
            for layer, kernels in zip(params.layers, self.kernels(params), strict=True)
        )
        return self, dataclasses.replace(params, layers=layers, logits=quantize(logits))

    def kernels(self, params: Any) -> list[dict[str, Kernel]]:
        """Each decoder layer's that are there, by name; the rest are norms and biases."""
        names = self.packing.LAYER_KERNELS
        found = ({name: getattr(layer, name) for name in names} for layer in params.layers)
        return [{n: kernel for n, kernel in each.items() if kernel is not None} for each in found]

    def check_whole(self) -> None:
        """Raises ValueError on a mesh that cuts kernels, which weights of few bits do not allow."""
        cut = [
            axis for axis in self.axis_sizes
            if self.partitioning is not None and self.partitioning.ways(axis) > 1
        ]  # fmt: skip
        if cut:
            raise ValueError(
                f"Weights of few bits cannot be cut, and this mesh cuts {', '.join(cut)}: scales "
                "would be apart from what they belong to. Choose a mesh whose model axis is 1."
            )

    def extend(
        self, params: Any, encoded: Encoded, cache: kv.KVCache, tokens: Int[Array, "b t"],
        topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        x = self.embed(params, tokens)
        return self.extend_embedded(params, encoded, cache, x, topology, after=after)

    def prefilled(self, params: Any, encoded: Encoded, cache: kv.KVCache, prompt: Prompt) -> Start:
        """An empty cache filled with a prefix but for its last token, without logits."""
        before = jnp.asarray(prompt.prefix[:, :-1])
        states = jnp.zeros((*before.shape, self.config.d_model), self.dtype)
        if before.shape[1]:
            states, cache = self.extend(params, encoded, cache, before)
            cache = self.commit(cache, None, prompt.prefix_lengths - 1)
        return Start(encoded, cache, prompt.last_token, states)

    def extend_embedded(
        self, params: Any, encoded: Encoded | None, cache: kv.KVCache, x: Float[Array, "b t d"],
        topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]:  # fmt: skip
        """:meth:`extend` of rows of the embedding, or of what stands for such.

        ``encoded`` is None where a decoder attends to none.
        """
        batch, count, _ = x.shape
        more = filler.amount(batch, count)
        if more:
            topology = topology.with_filler(after + count, more)
        if isinstance(topology, Forest):
            topology = topology.over(cache.keys[0].shape[2])
        with self._resolving(batch):
            x, cache = self._extend(params, encoded, cache, filler.filled(x, more), topology, after)
        return filler.without(x, more), cache

    def empty_cache(self, batch: int, max_len: int) -> kv.KVCache:
        """For ``max_len`` tokens a row."""
        size = filler.cache_size(batch, max_len)
        heads = self._cached_heads(batch)
        width = self.key_value_heads * self.config.head_dim // heads
        with self._resolving(batch):
            return kv.init_cache(self.depth, batch, heads, size, width, self.dtype)

    def _cached_heads(self, batch: int) -> int:
        """Of keys and values of so many rows; 1 for heads side by side (``attention.py``)."""
        heads, platform = self.key_value_heads, platforms.current()
        if heads < self.config.num_heads:
            return heads  # Each has several rows of queries as it is.
        few = batch * heads * platform.tile <= platform.tile_rows
        whole = ways(self.partitioning, "heads") == 1
        return 1 if platform.heads_side_by_side and few and whole else heads

    def embed(self, params: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """The tokens' rows of the embedding."""
        with self._resolving(len(tokens)):
            return self._embedded(params, tokens)

    def logits(self, params: Any, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        batch, count, _ = hidden.shape
        more = filler.amount(batch, count)
        with self._resolving(batch):
            cut = "vocab" if params.output_tokens is None else None
            logits = self._logits(params, filler.filled(hidden, more))
            logits = constrain(filler.without(logits, more), ("batch", "length", cut))
            # Gathered once: all that is made of them is small, and not cut by vocabulary.
            return constrain(logits, ("batch", "length", None))

    def commit(
        self, cache: kv.KVCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> kv.KVCache:
        with self._resolving(len(count)):
            return kv.commit(cache, path, count)

    def select(self, cache: kv.KVCache, rows: Int[Array, "g n"]) -> kv.KVCache:
        with self._resolving(len(rows)):
            return kv.select(cache, rows)

    def over_vocabulary(self, params: Any, distribution: Distribution) -> Distribution:
        if params.output_tokens is None:
            return distribution
        return spread(distribution, params.output_tokens, self.vocab_size)

    @property
    def ops(self) -> ModuleType:
        """The products of its layout: ``few_tokens.py`` or ``plain.py``."""
        return few_tokens if self.layout == "out_in" else plain

    def _resolving(self, batch_size: int) -> contextlib.AbstractContextManager:
        """What constraints mean: this model's own rules, or nothing."""
        if self.partitioning is None:
            return contextlib.nullcontext()
        return self.partitioning.resolving(batch_size)

    @abc.abstractmethod
    def _extend(
        self, params, encoded, cache, x, topology, after
    ) -> tuple[Float[Array, "b t d"], kv.KVCache]: ...

    @abc.abstractmethod
    def _logits(self, params, x) -> Float[Array, "b t v"]: ...

    @abc.abstractmethod
    def _norm(self, norm: Any) -> fused.Norm | None:
        """A norm's parameters as ``fused`` has them."""

    @abc.abstractmethod
    def _normed(self, x: Float[Array, "b t d"], norm: Any) -> Float[Array, "b t d"]: ...

    @abc.abstractmethod
    def _joined_queries_keys_values(self, layer, x) -> Float[Array, "b t 3*i"]:
        """Of x, normalised."""

    @abc.abstractmethod
    def _queries_keys_values(self, layer, x) -> list[Float[Array, "b t i"]]: ...

    @property
    def _query_scale(self) -> float:
        """What queries are multiplied with."""
        return 1.0

    def _fuses(self, x: Float[Array, "b t d"], *others: Kernel) -> bool:
        """Whether ``fused`` does what is done with x and such others: all have its dtype."""
        return (
            platforms.current().fused
            and self.layout == "in_out"
            and self.partitioning is None
            and x.shape[0] * x.shape[1] <= fused.MOST_ROWS
            and all(isinstance(each, jax.Array) and each.dtype == x.dtype for each in others)
        )

    def _product_of_normed(
        self, x: Float[Array, "b t d"], norm: Any, kernel: Kernel,
        bias: Float[Array, " i"] | None = None,
    ) -> Float[Array, "b t i"]:  # fmt: skip
        if self._fuses(x, kernel):
            return fused.product_of_normed(x, self._norm(norm), kernel, bias)
        product = self.ops.product(kernel, self._normed(x, norm))
        return product if bias is None else product + bias

    def _self_attention(
        self, layer: Any, x: Float[Array, "b t d"], old: Sequence[Array],
        bias: Any, at: Int[Array, " b"],
    ) -> tuple[Float[Array, "b t i"], Array, Array]:  # fmt: skip
        """Attention of a block to itself and the cache; keys and values of the cache with it."""
        if self._fuses(x, *old):
            joined = self._joined_queries_keys_values(layer, x)
            return fused.self_attention(joined, old[0], old[1], bias, at, self._query_scale)
        query, key, value = self._queries_keys_values(layer, x)
        key, value = self._written(old, (key, value), at)
        return self._attend(query, key, value, bias), key, value

    def _cross_attention(
        self, query: Float[Array, "b t i"], keys: Float[Array, "b h s k"],
        values: Float[Array, "b h s k"], bias: Float[Array, "b 1 1 s"],
    ) -> Float[Array, "b t i"]:  # fmt: skip
        if self._fuses(query, keys, values):
            return fused.cross_attention(query, keys, values, bias, self._query_scale)
        (query,) = self._split(query, 1, "joined_kv")
        query = query if self._query_scale == 1 else query * self._query_scale
        return self._attend(query, keys, values, bias)

    def _added(
        self, x: Float[Array, "b t d"], h: Float[Array, "b t i"], kernel: Kernel,
        bias: Float[Array, " d"] | None = None,
    ) -> Float[Array, "b t d"]:  # fmt: skip
        """x + h kernel + bias."""
        if self._fuses(x, h, kernel):
            return fused.added(x, h, kernel, bias)
        part = self.ops.product(kernel, h)
        if bias is None:
            return hidden(x + part)
        # Once in memory; else each norm would add up all that came before it again.
        return jax.lax.optimization_barrier(hidden(x + part + bias))

    def _split(self, products: Float[Array, "b t i"], count: int, axis: str) -> list[Array]:
        """The products of joined kernels apart; the mesh cuts each along ``axis``."""
        return self.ops.split(products, count, ways(self.partitioning, axis))

    def _logits_of_normed(
        self, params: Any, x: Float[Array, "b t d"], bias: Float[Array, " v"] | None = None
    ) -> Float[Array, "b t v"]:
        tied = params.logits is None
        kernel = params.embedding if tied else params.logits
        if self._fuses(x, kernel):
            norm = self._norm(params.final_norm)
            return fused.product_of_normed(x, norm, kernel, bias, tied=tied, dtype=jnp.float32)
        normed = self._normed(x, params.final_norm)
        kernel = self.ops.tied(kernel) if tied else kernel
        logits = self.ops.product(kernel, normed, jnp.float32)
        return logits if bias is None else logits + bias

    def _embedded(self, params, tokens) -> Float[Array, "b t d"]:
        embedded = self.ops.embed(params.embedding, tokens).astype(self.dtype)
        # Else widening is fused with what follows, which then may round otherwise.
        return hidden(jax.lax.optimization_barrier(embedded))

    def _written(
        self, old: Sequence[Array], new: Sequence[Array], at: Int[Array, " b"]
    ) -> tuple[Array, Array]:
        """A layer's keys and values [B, H, M, K] with those [B, T, I] of a block."""
        key, value = (
            kv.write(a, attention.entries(b, a.shape[1]), at) for a, b in zip(old, new, strict=True)
        )
        # One update in place; fused into its readers it would be several, and copies.
        return jax.lax.optimization_barrier((key, value))

    def _attend(self, query, keys, values, bias) -> Float[Array, "b t i"]:
        return attention.attend(self.ops, self.config.num_heads, query, keys, values, bias)


def hidden(x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """What layers add to, laid out on a mesh."""
    return constrain(x, HIDDEN_AXES)
