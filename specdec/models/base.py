"""The model, as the decode loop calls it."""

from __future__ import annotations

import dataclasses
from typing import Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from specdec.core.topology import CHAIN, Order
from specdec.models.partitioning import Partitioning
from specdec.models.placing import place
from specdec.types import AnyArray, Cache, Distribution, Encoded, Params, Prompt, Start

T = TypeVar("T")


class Model(Protocol):
    """An autoregressive language model with a cache that can be rolled back.

    Encoder-decoder and decoder-only alike. ``params`` are the model's decode parameters, whatever
    its own packing makes of a checkpoint. Everything is pure and traceable; shapes are static.

    Shapes: B batch, T tokens of a call, D hidden width, V vocabulary.
    """

    @property
    def vocab_size(self) -> int:
        """V, how many tokens there are."""
        ...

    @property
    def pad_id(self) -> int:
        """Token that outputs are filled up with. It may be a token that is also emitted."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens of which each ends a row; the first is the usual one.

        None where rows end only at their limit.
        """
        ...

    def prompt(self, tokens: Shaped[AnyArray, "b s ..."], lengths: Int[AnyArray, " b"]) -> Prompt:
        """Token ids of texts as this model takes them: encoder inputs, or the decoder's prefix.

        Args:
          tokens: [B, S], of which the first ``lengths[b]`` of row b count; or features [B, S, M].
        """
        ...

    def start(
        self, params: Params, prompt: Prompt, max_len: int, given: Encoded | None = None
    ) -> Start:
        """Encodes the inputs and prefills the cache with the prefix but for its last token.

        Args:
          max_len: capacity of the cache for tokens from the last prefix token on.
          given: of a draft, what its target made of the same inputs; it may start from there.
        """
        ...

    def extend(
        self, params: Params, encoded: Encoded, cache: Cache, tokens: Int[Array, "b t"],
        topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], Cache]:  # fmt: skip
        """Scores T >= 1 tokens that follow each row's committed ones.

        SETS cache entries at each row's own positions but does not count them as committed:
        :meth:`commit` does. Extending again without a commit overwrites them. Positions follow a
        node's depth, not its index in the block.

        Args:
          encoded: may be of fewer rows than the cache: B / E rows that follow each other share
            each of E (beams).
          tokens: [B, T], nodes after..after + T - 1 of the block.
          topology: each node's parent, of the whole block so far or more of it; or a forest, which
            says what each token of the call follows.
          after: nodes of the block written by earlier calls, so that a tree can grow by levels.

        Returns:
          the last layer's hidden states [B, T, D] and the cache.
        """
        ...

    def logits(self, params: Params, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """float32 logits of the token after each one.

        A model that generates n tokens only has logits [B, T, n]; :meth:`over_vocabulary` puts
        them among all.
        """
        ...

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        """A distribution made of :meth:`logits`, over all V tokens.

        A draft may leave rare tokens out, which saves it most of its logits and stays lossless:
        its q is 0 there. A target never does.
        """
        ...

    def commit(
        self, cache: Cache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> Cache:
        """Keeps ``count[b]`` of the nodes just extended, along ``path`` (in order when None).

        A negative count forgets committed tokens: that is all rolling back is.
        """
        ...


class LoadableModel(Model, Protocol):
    """A model with methods beside the loop's: its kind of texts, what it reads, its copies."""

    @property
    def input_vocab_size(self) -> int:
        """Number of tokens that an encoder knows; :attr:`vocab_size` where there is none."""
        ...

    @property
    def input_shape(self) -> tuple[int, int] | None:
        """Frames of sound that an encoder reads, and features of each; None for tokens."""
        ...

    @property
    def image_ids(self) -> tuple[int, ...]:
        """Tokens that stand for an image, which no text may hold."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Tokens that a row's prefix and output may have together, and an encoder's input.

        None for any number.
        """
        ...

    @property
    def reads_prefix(self) -> bool:
        """Whether a text is the decoder's prefix, which the output continues.

        Else an encoder reads it, and EOS marks its end.
        """
        ...

    def exactly(self) -> LoadableModel:
        """This model, whose logits of a token are the same bits in every call.

        Raises:
          ValueError: it cannot promise that.
        """
        ...

    def encodes(self, params: Params) -> bool:
        """Whether it reads inputs with an encoder of its own, not its target's."""
        ...

    def quantized(
        self, params: Params, bits: int, group: int, *, of_target: bool
    ) -> tuple[LoadableModel, Params]:
        """A draft: a copy of which a decode step reads weights in few bits.

        Args:
          bits: 8, or 4 with a scale for each ``group`` of in-features.
          of_target: it drafts for this very model, and shares what that makes of the inputs.

        Raises:
          ValueError: the group does not divide a kernel, a mesh cuts kernels, or they have as few
            bits already.
        """
        ...


def prompt_of(
    tokens: Shaped[AnyArray, "b s ..."], lengths: Int[AnyArray, " b"], start_id: int, *,
    reads_prefix: bool,
) -> Prompt:  # fmt: skip
    """A prompt whose texts are inputs, and the start token its prefix; or they are the prefix.

    An empty prefix is the start token.
    """
    batch = len(tokens)
    if not reads_prefix:
        start = np.full((batch, 1), start_id, np.int32)
        return Prompt(tokens, lengths, start, np.ones(batch, np.int32))
    prefix, lengths = np.array(tokens, np.int32), np.asarray(lengths, np.int32)
    prefix = prefix.reshape(batch, -1) if prefix.size else np.zeros((batch, 1), np.int32)
    prefix[:, 0] = np.where(lengths == 0, start_id, prefix[:, 0])
    inputs = np.zeros((batch, 0), np.int32)
    return Prompt(inputs, np.zeros(batch, np.int32), prefix, np.maximum(lengths, 1))


def forced(prompt: Prompt, tokens: Int[AnyArray, "b p"], lengths: Int[AnyArray, " b"]) -> Prompt:
    """A prompt whose start token ``lengths[b]`` of ``tokens`` follow: an output's forced beginning.

    They are prefilled with the start token, and never output.
    """
    prefix = np.concatenate([prompt.prefix, np.asarray(tokens, np.int32)], axis=1)
    both = np.asarray(prompt.prefix_lengths + lengths, np.int32)
    return dataclasses.replace(prompt, prefix=prefix, prefix_lengths=both)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its packed parameters and where it came from.

    Attributes:
      model, params: of any architecture.
      source: the checkpoint's name, for messages.
      partitioning: how it lies on a mesh; None for one device.
      encoding_width: of what its encoder gives a draft; None without an encoder.
      reads_encoding: width of the target's encoding that it starts from; None for a model that
        needs none, as each target does.
      most_tokens: how many different tokens it generates, with a draft vocabulary; None for all.
    """

    model: LoadableModel
    params: Params
    source: str
    partitioning: Partitioning | None = None
    encoding_width: int | None = None
    reads_encoding: int | None = None
    most_tokens: int | None = None

    def quantized(self, bits: int, group: int, of_target: bool) -> LoadedModel:
        """A draft in few bits; see :meth:`LoadableModel.quantized`."""
        model, params = self.model.quantized(self.params, bits, group, of_target=of_target)
        return dataclasses.replace(self, model=model, params=params)

    def check_batch_size(self, batch_size: int) -> None:
        """Raises ValueError for a batch that the mesh cannot cut into equal parts."""
        if self.partitioning is not None:
            self.partitioning.check_batch_size(batch_size)

    def place_rows(self, rows: T) -> T:
        """A tree of arrays [B, ...] on the devices that decode these rows.

        Raises:
          ValueError: see :meth:`check_batch_size`.
        """
        self.check_batch_size(len(jax.tree.leaves(rows)[0]))
        return jax.tree.map(lambda array: place(array, ("batch",), self.partitioning), rows)
