"""A tiny table-driven model whose next-token law depends on the inputs and on every past token.

It reads its past from a real cache, so a stale or misplaced entry changes what it says: that is
what the exact oracle needs (``specdec.testing.oracle``).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.models.cache import block_mask, slot_positions
from specdec.types import Distribution, Encoded, Topology, pytree


@pytree
class ToyCache:
    """Tokens written [B, M] and how many are committed [B]."""

    tokens: Int[Array, "b m"]
    length: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class ToyModel:
    """logits = table[(input hash + sum over the past of (token + 1) * (3 * position + 1)) % C].

    ``params`` is that table, [C, V] of logits.
    """

    vocab_size: int
    pad_id: int = 0
    eos_id: int = 1
    decoder_start_id: int = 0

    def encode(
        self, params: Float[Array, "c v"], inputs: Int[Array, "b s"], target: Encoded | None = None
    ) -> Int[Array, " b"]:
        """A hash of the inputs, [B]."""
        del target
        return jnp.sum(inputs * (1 + jnp.arange(inputs.shape[1])), axis=1)

    def init_cache(self, batch_size: int, max_len: int) -> ToyCache:
        """An empty cache."""
        return ToyCache(
            jnp.zeros((batch_size, max_len), jnp.int32), jnp.zeros((batch_size,), jnp.int32)
        )

    def extend(
        self,
        params: Float[Array, "c v"],
        encoded: Int[Array, " b"],
        cache: ToyCache,
        tokens: Int[Array, "b t"],
        topology: Topology | None = None,
    ) -> tuple[Float[Array, "b t v"], ToyCache]:
        """See :meth:`specdec.models.base.Model.extend`."""
        topology = topology or Topology.chain(tokens.shape[1])
        max_len = cache.tokens.shape[1]
        written = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new, (at,)))(
            cache.tokens, tokens, cache.length
        )
        seen = block_mask(topology, cache.length, max_len)
        weights = (written + 1) * (3 * slot_positions(topology, cache.length, max_len) + 1)
        past = jnp.sum(jnp.where(seen, weights[:, None, :], 0), axis=-1)
        context = (encoded[:, None] + past) % params.shape[0]
        return params[context], dataclasses.replace(cache, tokens=written)

    def commit(
        self, cache: ToyCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> ToyCache:
        """See :func:`specdec.models.cache.commit`."""
        tokens = cache.tokens
        if path is not None:
            kept = jnp.take_along_axis(tokens, cache.length[:, None] + path, axis=1)
            tokens = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new, (at,)))(
                tokens, kept, cache.length
            )
        return ToyCache(tokens, cache.length + count)

    def over_vocabulary(
        self, params: Float[Array, "c v"], distribution: Distribution
    ) -> Distribution:
        """It says every token."""
        return distribution
