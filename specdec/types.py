"""The data that passes between the parts. No logic beyond checking one's own fields.

Shapes: B batch, N drafted tokens (N = gamma for a chain), G gamma, V vocabulary, L output bucket.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Protocol, TypeVar, dataclass_transform

import jax
from jaxtyping import Array, Bool, Float, Int

T = TypeVar("T")
Params = Any  # A model's own pytree; only that model looks inside.
Cache = Any
Encoded = Any
DrafterState = Any


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass and registers it with JAX; ``static`` fields are metadata."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    static = [f.name for f in fields if f.metadata.get("static")]
    jax.tree_util.register_dataclass(
        cls, data_fields=[f.name for f in fields if f.name not in static], meta_fields=static
    )
    return cls


def static_field(**kwargs: Any) -> Any:
    """A field of a :func:`pytree` that is part of the tree's structure, not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How logits become the distribution that is sampled; see :func:`specdec.core.standardize`.

    Attributes:
      temperature: divides the logits; 0 means argmax. Must be >= 0.
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: then keep the smallest set with at least this probability; in (0, 1].

    Raises:
      ValueError: for a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not (self.temperature >= 0 and self.temperature < float("inf")):
            raise ValueError(
                f"temperature must be finite and >= 0 (0 means argmax), got {self.temperature}."
            )
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise ValueError(f"top_k must be an integer >= 0 (0 keeps all), got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 keeps all), got {self.top_p}.")

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a point mass on the most likely token."""
        return self.temperature == 0


@dataclasses.dataclass(frozen=True)
class Topology:
    """Which token each token of a block follows.

    Attributes:
      parents: ``parents[i] < i`` is the index of node i's parent; -1 means that it follows
        the cache's last committed token.

    Raises:
      ValueError: if a parent does not come before its child.
    """

    parents: tuple[int, ...]

    def __post_init__(self):
        for i, parent in enumerate(self.parents):
            if not -1 <= parent < i:
                raise ValueError(
                    f"Topology.parents[{i}] is {parent}; a parent must be in [-1, {i})."
                )

    @classmethod
    def chain(cls, length: int) -> Topology:
        """Each token follows the one before it."""
        return cls(tuple(range(-1, length - 1)))

    @property
    def is_chain(self) -> bool:
        """Whether this is the tree with one branch."""
        return self == Topology.chain(len(self.parents))


@pytree
class PointMass:
    """Distributions that put all mass on one token each.

    Attributes:
      tokens: [B, N].
      relative: [B, N, V], p(x) / max p of the distributions whose argmax they are, for a verifier
        that asks for it; else None.
    """

    tokens: Int[Array, "b n"]
    relative: Float[Array, "b n v"] | None = None


# Dense probabilities [B, N, V] in float32, or point masses.
Distribution = Array | PointMass


@pytree
class Draft:
    """What a drafter proposes for one block.

    Attributes:
      tokens: [B, N] guesses.
      probs: [B, N, V], the exact q each token was drawn from, or None for point masses.
      topology: each node's parent; a chain unless the drafter drafts a tree.
      num_guesses: [B], in 0..N: how many of a row's tokens are guesses, the rest being filler; None
        when all are. It may depend on the guesses themselves and on what came before, for those
        guesses are all verified.
    """

    tokens: Int[Array, "b n"]
    probs: Float[Array, "b n v"] | None
    topology: Topology = static_field()
    num_guesses: Int[Array, " b"] | None = None


@pytree
class Verdict:
    """What verification made of a draft.

    Attributes:
      tokens: [B, G+1]; the first ``num_emitted[b]`` of row b are its next tokens: the accepted
        guesses and then one correction (from the residual) or bonus token (from p).
      num_emitted: [B], in 1..G+1; 0 for a row that is finished.
      num_accepted: [B], in 0..num_guesses: how many of them are guesses.
      path: [B, G+1], nodes of the scored block (0 is the token before the draft) whose cache
        entries are kept, in order; only the first ``num_emitted[b]`` count.
    """

    tokens: Int[Array, "b g1"]
    num_emitted: Int[Array, " b"]
    num_accepted: Int[Array, " b"]
    path: Int[Array, "b g1"]


class Purpose(enum.IntEnum):
    """What a random number is for. No two purposes ever share one."""

    PROPOSAL = 0
    ACCEPTANCE = 1
    FINAL = 2
    # The same for a drafter that is a speculative pair itself.
    INNER_PROPOSAL = 3
    INNER_ACCEPTANCE = 4
    INNER_FINAL = 5


class RandomSource(Protocol):
    """One block's random numbers; see :mod:`specdec.core.randomness` for the real one."""

    def uniforms(self, purpose: Purpose, count: int) -> Float[Array, "b count"]:
        """``count`` numbers in [0, 1) a row."""
        ...


@pytree
class Stats:
    """Counts for each row, accumulated inside the loop; dropped tokens enter none but ``dropped``.

    Attributes:
      target_calls: [B] blocks run while the row was unfinished.
      proposed: [B] guesses made.
      examined: [B] guesses looked at: up to the first rejection, or the row's end.
      accepted: [B] guesses emitted.
      emitted: [B] tokens emitted, EOS included.
      dropped: [B] tokens verified but past EOS or the length limit.
      accepted_histogram: [B, G+1] blocks by the number of guesses accepted.
      acceptance_prob_sum: [B] sum of the acceptance probabilities of the examined guesses'
        positions, sum_x min(p(x), q(x)); divided by ``examined`` it estimates alpha
        (Leviathan et al. 2023, Corollary 3.6).
    """

    target_calls: Int[Array, " b"]
    proposed: Int[Array, " b"]
    examined: Int[Array, " b"]
    accepted: Int[Array, " b"]
    emitted: Int[Array, " b"]
    dropped: Int[Array, " b"]
    accepted_histogram: Int[Array, "b g1"]
    acceptance_prob_sum: Float[Array, " b"]


@pytree
class BlockInfo:
    """One block's diagnostics.

    Attributes:
      draft_tokens: [B, G] the guesses.
      num_guesses: [B] how many of them are guesses.
      tokens: [B, G+1] the verdict's tokens.
      num_accepted: [B] guesses emitted (after EOS and the length limit).
      num_emitted: [B] tokens emitted; 0 for a finished row.
    """

    draft_tokens: Int[Array, "b g"]
    num_guesses: Int[Array, " b"]
    tokens: Int[Array, "b g1"]
    num_accepted: Int[Array, " b"]
    num_emitted: Int[Array, " b"]


@pytree
class DecodeState:
    """What the next step needs.

    Attributes:
      tokens: [B, L + slack] output so far; beyond ``num_tokens`` is garbage.
      num_tokens: [B] tokens emitted, EOS included.
      last_token: [B] emitted but not yet in the target's cache.
      finished: [B] EOS emitted or limit reached.
      block: scalar, how many blocks have run.
      row_keys: [B] one key a row.
      cache: the target's.
      drafter_state: the drafter's own; None for plain decoding.
      stats: accumulated counts.
      trace: BlockInfo with a leading axis of blocks, or None.
    """

    tokens: Int[Array, "b l"]
    num_tokens: Int[Array, " b"]
    last_token: Int[Array, " b"]
    finished: Bool[Array, " b"]
    block: Int[Array, ""]
    row_keys: Array
    cache: Cache
    drafter_state: DrafterState
    stats: Stats
    trace: BlockInfo | None


@pytree
class DecodeResult:
    """A finished decode.

    Attributes:
      tokens: [B, L] with ``pad_id`` after the end.
      num_tokens: [B] EOS included.
      stats: see :class:`Stats`.
      trace: see :class:`BlockInfo`, leading axis of blocks; None unless asked for.
    """

    tokens: Int[Array, "b l"]
    num_tokens: Int[Array, " b"]
    stats: Stats
    trace: BlockInfo | None
