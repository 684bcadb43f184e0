"""What a model is to the decode loop."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Array, Float, Int

from specdec.types import Cache, Distribution, Encoded, Params, Topology


class Model(Protocol):
    """A conditional language model with a cache that can be rolled back.

    ``params`` are the model's decode parameters, whatever its own packing makes of a checkpoint.
    Everything is pure and traceable; shapes are static.
    """

    @property
    def vocab_size(self) -> int:
        """V, how many tokens there are."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills inputs and outputs."""
        ...

    @property
    def eos_id(self) -> int:
        """Ends a row."""
        ...

    @property
    def decoder_start_id(self) -> int:
        """What the first output token follows."""
        ...

    def encode(
        self, params: Params, inputs: Int[Array, "b s"], target: Encoded | None = None
    ) -> Encoded:
        """All that decoding needs of the inputs (cross-attention K/V), computed once.

        Args:
          target: of a draft, what its target's ``encode`` made of them; it may start from there.
        """
        ...

    def init_cache(self, batch_size: int, max_len: int) -> Cache:
        """An empty cache with room for ``max_len`` tokens a row."""
        ...

    def extend(
        self,
        params: Params,
        encoded: Encoded,
        cache: Cache,
        tokens: Int[Array, "b t"],
        topology: Topology | None = None,
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """Scores T >= 1 tokens that follow each row's committed ones.

        SETS cache entries at each row's own positions but does not count them as committed:
        :meth:`commit` does. Extending again without a commit overwrites them.

        Args:
          tokens: [B, T]; the first follows the last committed token.
          topology: each token's parent; a chain when None.

        Returns:
          float32 logits [B, T, V] of what follows each token, and the cache. A model that says
          N tokens only has logits [B, T, N]: :meth:`over_vocabulary` tells which.
        """
        ...

    def commit(
        self, cache: Cache, path: Int[Array, "b t"] | None, count: Int[Array, " b"]
    ) -> Cache:
        """Keeps ``count[b]`` of the tokens just extended, along ``path`` (in order when None)."""
        ...

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        """What is made of :meth:`extend`'s logits, over all V tokens.

        A draft may leave rare tokens out, which saves it most of its logits and stays lossless:
        its q is 0 there. A target never does.
        """
        ...
