"""A tiny table-driven model whose next-token distribution depends on the inputs and on every past
token.

It reads its past from a real cache, so a stale or misplaced entry changes what it generates: that
is what the exact oracle needs (``specdec.testing.oracle``).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.pytrees import pytree
from specdec.core.residuals import write_at
from specdec.core.topology import CHAIN, Order
from specdec.models.base import prompt_of
from specdec.models.cache import block_mask, slot_positions
from specdec.models.products.quantized import to_int8
from specdec.types import AnyArray, Distribution, Encoded, Prompt, Start


@pytree
class ToyCache:
    """Tokens written [B, M] and how many are committed [B]."""

    tokens: Int[Array, "b m"]
    length: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class ToyModel:
    """logits = table[(input hash + sum over the past of (token + 1) * (3 * position + 1)) % C].

    ``params`` is that table, [C, V] of logits. A hidden state is a row's number in the table,
    [B, T, 1].
    """

    vocab_size: int
    pad_id: int = 0
    eos_ids: tuple[int, ...] = (1,)
    decoder_start_id: int = 0
    of_target: bool = False  # See `quantized`.
    reads_prefix: bool = False  # The texts are the prefix, which an empty one begins with a start.
    max_positions: int | None = None
    image_ids: tuple[int, ...] = ()
    input_shape: tuple[int, int] | None = None

    @property
    def input_vocab_size(self) -> int:
        return self.vocab_size

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        return prompt_of(tokens, lengths, self.decoder_start_id, reads_prefix=self.reads_prefix)

    def encodes(self, params: Float[Array, "c v"]) -> bool:
        """Whether it hashes the inputs itself."""
        del params
        return not (self.of_target or self.reads_prefix)

    def start(
        self, params: Float[Array, "c v"], prompt: Prompt, max_len: int,
        given: Encoded | None = None,
    ) -> Start:  # fmt: skip
        """Encoded is a hash of the inputs, [B]."""
        positions = 1 + jnp.arange(prompt.inputs.shape[1])
        encoded = jnp.sum(jnp.where(prompt.input_mask, prompt.inputs * positions, 0), axis=1)
        if self.of_target and given is not None:
            encoded = given
        batch, before = prompt.batch_size, prompt.prefix.shape[1] - 1
        cache = ToyCache(
            jnp.zeros((batch, before + max_len), jnp.int32), jnp.zeros((batch,), jnp.int32)
        )
        states = jnp.zeros((batch, before, 1))
        if before:
            states, cache = self.extend(params, encoded, cache, prompt.prefix[:, :-1])
            cache = self.commit(cache, None, prompt.prefix_lengths - 1)
        return Start(encoded, cache, prompt.last_token, states)

    def extend(
        self, params: Float[Array, "c v"], encoded: Int[Array, " b"], cache: ToyCache,
        tokens: Int[Array, "b t"], topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t 1"], ToyCache]:  # fmt: skip
        length, max_len, count = cache.length, cache.tokens.shape[1], tokens.shape[1]
        written = write_at(cache.tokens, tokens, length + after)
        seen = block_mask(topology, length, max_len, count, after)
        positions = slot_positions(topology, length, max_len, after + count)
        weights = (written + 1) * (3 * positions + 1)
        past = jnp.sum(jnp.where(seen, weights[:, None, :], 0), axis=-1)
        encoded = jnp.repeat(encoded, len(tokens) // len(encoded))
        context = (encoded[:, None] + past) % params.shape[0]
        hidden = context[..., None].astype(jnp.float32)
        return hidden, dataclasses.replace(cache, tokens=written)

    def logits(
        self, params: Float[Array, "c v"], hidden: Float[Array, "b t 1"]
    ) -> Float[Array, "b t v"]:
        """Rows of the table."""
        return params[hidden[..., 0].astype(jnp.int32)]

    def over_vocabulary(
        self, params: Float[Array, "c v"], distribution: Distribution
    ) -> Distribution:
        """The distribution itself: the model generates every token."""
        return distribution

    def commit(
        self, cache: ToyCache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> ToyCache:
        tokens = cache.tokens
        if path is not None:
            slots = cache.length[:, None] + path
            kept = jnp.take_along_axis(tokens, slots, axis=1, mode="clip")
            tokens = write_at(tokens, kept, cache.length)
        return ToyCache(tokens, cache.length + count)

    def exactly(self) -> ToyModel:
        return self  # It adds nothing up.

    def quantized(
        self, params: Float[Array, "c v"], bits: int, group: int, *, of_target: bool
    ) -> tuple[ToyModel, Float[Array, "c v"]]:
        """Each row of the table in 8 bits, whatever is asked for."""
        del bits, group
        qvalue, scale = to_int8(params, axis=1)
        return dataclasses.replace(self, of_target=of_target), qvalue * scale
