"""What encoder-decoders have in common as the decode loop's :class:`~specdec.models.base.Model`.

A text is the encoder's input. It is encoded once: every layer's cross-attention keys and values are
one product. An architecture adds its encoder and its layers.

Shapes: B batch, S input length, T block length, H heads, K head_dim, I = H * K, D d_model.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec.core.pytrees import pytree
from specdec.models import attention
from specdec.models.packed import NEG_INF, PackedModel
from specdec.types import AnyArray, Prompt, Start

M = TypeVar("M", bound="EncoderDecoderModel")


@pytree
class EncodedInputs:
    """What decoding needs of the inputs."""

    # Each layer's cross-attention keys and values.
    keys: tuple[Float[Array, "b h s k"], ...]
    values: tuple[Float[Array, "b h s k"], ...]
    mask: Bool[Array, "b s"]  # Which inputs are no filler.
    output: Float[Array, "b s d"]  # The encoder's, which a draft may start from.


@dataclasses.dataclass(frozen=True)
class EncoderDecoderModel(PackedModel):
    """An encoder-decoder that can be extended, committed and rolled back.

    Its ``params`` have ``encoder`` and ``cross_kv``, too; a draft that starts from what its target
    made of the inputs has neither.
    """

    @property
    def decoder_start_id(self) -> int:
        """What the first output token follows."""
        return self.config.start_id

    @property
    def depth(self) -> int:
        return self.config.num_decoder_layers

    def step_params(self, params: Any) -> Any:
        return dataclasses.replace(super().step_params(params), encoder=None, cross_kv=None)

    def quantized(self: M, params: Any, bits: int, group: int, *, of_target: bool) -> tuple[M, Any]:
        """The decoder's kernels, and the logits', in few bits; all else is shared."""
        _, params = super().quantized(params, bits, group, of_target=of_target)
        if of_target:
            params = dataclasses.replace(params, encoder=None, cross_kv=None)
        return self, params

    def prompt(self, tokens: Int[AnyArray, "b s"], lengths: Int[AnyArray, " b"]) -> Prompt:
        """The texts are the encoder's inputs; the prefix is the start token."""
        batch = len(tokens)
        start = np.full((batch, 1), self.config.start_id, np.int32)
        return Prompt(tokens, lengths, start, np.ones(batch, np.int32))

    def start(
        self, params: Any, prompt: Prompt, max_len: int, given: EncodedInputs | None = None
    ) -> Start:
        """Runs the encoder, projects its output to cross-attention K/V, prefills the prefix.

        Raises:
          ValueError: it starts from a target's encoding, and is given none or one of another width.
        """
        batch, before = prompt.batch_size, prompt.prefix.shape[1] - 1
        with self._resolving(batch):
            if params.encoder is None and given is not None:
                encoded = given  # What the same model in more bits made of the inputs.
            else:
                mask = prompt.input_mask
                encoded = self.attended(params, self._encode(params, prompt, mask, given), mask)
            cache = self.empty_cache(batch, before + max_len)
        return self.prefilled(params, encoded, cache, prompt)

    def attended(
        self, params: Any, output: Float[Array, "b s d"], mask: Bool[Array, "b s"]
    ) -> EncodedInputs:
        """What each layer attends to, of an encoder's output."""
        count, heads = self.config.num_decoder_layers, self._cached_heads(len(output))
        split = [attention.entries(each, heads) for each in self._cross_keys_values(params, output)]
        return EncodedInputs(tuple(split[:count]), tuple(split[count:]), mask, output)

    @abc.abstractmethod
    def _encode(
        self, params: Any, prompt: Prompt, mask: Bool[Array, "b s"], given: EncodedInputs | None
    ) -> Float[Array, "b s d"]:
        """The encoder's output."""

    def _cross_keys_values(
        self, params: Any, output: Float[Array, "b s d"]
    ) -> list[Float[Array, "b s i"]]:
        """Every layer's keys, then every layer's values."""
        projected = self.ops.product(params.cross_kv, output)
        return self._split(projected, 2 * self.config.num_decoder_layers, "joined_kv")

    @abc.abstractmethod
    def _cross_query(self, layer: Any, x: Float[Array, "b t d"]) -> Float[Array, "b t i"]: ...

    def _attend_to(
        self, encoded: EncodedInputs, layer: Any, i: int, x: Float[Array, "b t d"]
    ) -> Float[Array, "b t i"]:
        """Cross-attention of layer i."""
        query = self._cross_query(layer, x)
        # Rows that share an encoding are as tokens of one row to it.
        query = query.reshape(len(encoded.mask), -1, query.shape[-1])
        h = self._cross_attention(query, encoded.keys[i], encoded.values[i], padding_bias(encoded))
        return h.reshape(*x.shape[:2], -1)


def padding_bias(encoded: EncodedInputs) -> Float[Array, "b 1 1 s"]:
    """What keeps filler of the inputs from being seen."""
    return jnp.where(encoded.mask, 0.0, NEG_INF)[:, None, None, :]
