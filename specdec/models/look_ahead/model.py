"""A target with look-ahead embeddings.

Source: Monea et al. 2023, "PaSS: Parallel Speculative Sampling", section 3.
Shapes: B batch, P pending tokens, L embeddings, D the target's hidden width.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.fields import Count, checked
from specdec.core.pytrees import pytree
from specdec.core.residuals import write_at
from specdec.models import cache as kv
from specdec.models import filler
from specdec.models.transformer.model import TransformerModel
from specdec.types import Distribution, Encoded, Params, Prompt

_STDDEV = 0.02  # Of embeddings that have learned nothing.


@checked()
class LookAheadConfig:
    """L embeddings for a target of hidden width D.

    Raises:
      ValueError: a value out of range.
    """

    count: Count  # L
    width: Count  # D


def init_params(config: LookAheadConfig, key: jax.Array) -> dict:
    """Embeddings that have learned nothing, float32."""
    return {"embeddings": _STDDEV * jax.random.normal(key, (config.count, config.width))}


@pytree
class LookAheadParams:
    """The embeddings, and the target's packed parameters."""

    embeddings: Float[Array, "l d"]
    target: Params


@dataclasses.dataclass(frozen=True)
class LookAheadModel:
    """A target whose call ends with the embeddings; it has a cache of its own."""

    target: TransformerModel
    config: LookAheadConfig

    @property
    def count(self) -> int:
        """L, how many tokens the embeddings guess."""
        return self.config.count

    def start(
        self, params: LookAheadParams, prompt: Prompt, max_len: int, encoded: Encoded
    ) -> kv.KVCache:
        """A cache with the prefix but for its last token, and capacity for ``max_len`` more."""
        before = filler.shared(prompt.prefix.shape[1] - 1)
        cache = self.target.empty_cache(prompt.batch_size, before + max_len)
        return self.target.prefilled(params.target, encoded, cache, prompt).cache

    def extend(
        self, params: LookAheadParams, encoded: Encoded, cache: kv.KVCache,
        tokens: Int[Array, "b p"], count: Int[Array, " b"],
    ) -> tuple[Float[Array, "b l1 d"], kv.KVCache]:  # fmt: skip
        """Feeds ``count[b]`` of row b's tokens, and behind them the embeddings.

        Returns:
          the states of the last token and of each embedding, and the cache.
        """
        x = self.target.embed(params.target, tokens)
        rows = jnp.broadcast_to(params.embeddings, (len(x), *params.embeddings.shape))
        # Filler stands behind the embeddings, and none before it attends to it.
        x = jnp.concatenate([x, jnp.zeros(rows.shape, x.dtype)], axis=1)
        x = write_at(x, rows.astype(x.dtype), count)
        hidden, cache = self.target.extend_embedded(params.target, encoded, cache, x)
        positions = count[:, None] - 1 + jnp.arange(1 + self.count)
        return jnp.take_along_axis(hidden, positions[..., None], axis=1), cache

    def logits(
        self, params: LookAheadParams, hidden: Float[Array, "b l1 d"]
    ) -> Float[Array, "b l1 v"]:
        return self.target.logits(params.target, hidden)

    def over_vocabulary(self, params: LookAheadParams, distribution: Distribution) -> Distribution:
        return self.target.over_vocabulary(params.target, distribution)

    def commit(self, cache: kv.KVCache, path: None, count: Int[Array, " b"]) -> kv.KVCache:
        return kv.commit(cache, path, count)
