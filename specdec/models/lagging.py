"""A model whose cache may lack one token more than the newest, as a draft's does after a block."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.models.base import Model
from specdec.models.cache import rows_of
from specdec.pytrees import pytree
from specdec.topology import CHAIN, Order
from specdec.types import AnyArray, Cache, Distribution, Encoded, Params, Prompt, Start


@pytree
class LaggingCache:
    """A cache, and the token it lacks before the newest."""

    cache: Cache  # The model's.
    lacking: Int[Array, " b"]  # That token, where there is one.
    lag: Int[Array, " b"]  # 1 where there is one, else 0.


@dataclasses.dataclass(frozen=True)
class Lagging:
    """The model, except that each call also feeds the token that its cache lacks.

    After a fully accepted block a draft's cache lacks its own last guess, besides the newest token
    that each call feeds anyway. A call of one token more costs less than a call of its own. Only
    chains; no row ends, for whoever reads the drafts decides that.
    """

    model: Model
    eos_ids: tuple[int, ...] = dataclasses.field(default=(), init=False)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def pad_id(self) -> int:
        return self.model.pad_id

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    @property
    def reads_prefix(self) -> bool:
        return self.model.reads_prefix

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        return self.model.prompt(tokens, lengths)

    def start(
        self, params: Params, prompt: Prompt, max_len: int, target: Encoded | None = None
    ) -> Start:
        """The model's, with nothing lacking."""
        start = self.model.start(params, prompt, max_len + 1, target)
        cache = LaggingCache(start.cache, start.last_token, jnp.zeros_like(start.last_token))
        return dataclasses.replace(start, cache=cache)

    def extend(
        self, params: Params, encoded: Encoded, cache: LaggingCache, tokens: Int[Array, "b t"],
        topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], LaggingCache]:  # fmt: skip
        """See :meth:`specdec.models.base.Model.extend`; one chain, in one call."""
        assert topology.is_chain
        assert not after
        behind = jnp.concatenate([cache.lacking[:, None], tokens], axis=1)
        alone = jnp.concatenate([tokens, tokens[:, -1:]], axis=1)
        fed = jnp.where(cache.lag[:, None] > 0, behind, alone)
        hidden, inner = self.model.extend(params, encoded, cache.cache, fed)
        at = cache.lag[:, None] + jnp.arange(tokens.shape[1])
        hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)
        return hidden, dataclasses.replace(cache, cache=inner)

    def logits(self, params: Params, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        return self.model.logits(params, hidden)

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        return self.model.over_vocabulary(params, distribution)

    def commit(
        self, cache: LaggingCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> LaggingCache:
        """Keeps tokens, and with the first of them what was lacking; see the protocol."""
        assert path is None
        kept = jnp.where(count > 0, count + cache.lag, count)
        inner = self.model.commit(cache.cache, None, kept)
        return LaggingCache(inner, cache.lacking, jnp.where(count > 0, 0, cache.lag))

    def without(
        self, cache: LaggingCache, token: Int[Array, " b"], lacks: Bool[Array, " b"]
    ) -> LaggingCache:
        """The cache, told of a token that it lacks in some rows."""
        return LaggingCache(cache.cache, token, lacks.astype(jnp.int32))

    def step_bytes(self, params: Params) -> int:
        return self.model.step_bytes(params)

    def quantized(
        self, params: Params, bits: int, group: int, *, of_target: bool
    ) -> tuple[Model, Params]:
        return self.model.quantized(params, bits, group, of_target=of_target)

    def select(self, cache: LaggingCache, rows: Int[Array, "g n"]) -> LaggingCache:
        inner = self.model.select(cache.cache, rows)
        return LaggingCache(inner, rows_of(cache.lacking, rows), rows_of(cache.lag, rows))
