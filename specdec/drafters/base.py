"""What a drafter is, and how a specification of one is opened for a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec.core.arguments import whole
from specdec.core.pytrees import pytree
from specdec.core.topology import CHAIN, MOST_NODES, AnyTopology, Order, Topology
from specdec.drafters.ngram_tables import NgramTables
from specdec.drafters.shape import Tree
from specdec.models.base import LoadedModel
from specdec.types import (
    Cache,
    Distribution,
    Draft,
    DrafterState,
    Encoded,
    Params,
    Prompt,
    RandomSource,
    RuleStates,
    Sampling,
    SamplingConfig,
    Start,
    Verdict,
)

TreeShapes = Literal["chains", "fixed", "best-first"]  # Each includes those before it.


class Drafter(Protocol):
    """Proposes the tokens of a block together with the exact q they were drawn from."""

    @property
    def topology(self) -> AnyTopology:
        """Its ``depth`` (gamma, for a chain) and ``size`` (nodes) are those of every draft."""
        ...

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Start) -> DrafterState:
        """State before the first block, for outputs of up to ``max_len`` tokens.

        Args:
          target: what the target's ``start`` made of the prompt.
        """
        ...

    def propose(
        self, params: Params, state: DrafterState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, DrafterState]:
        """Guesses the tokens that follow what was emitted so far.

        Args:
          rules: the states of the target's rules behind these, for a draft that applies them, too.
        """
        ...

    def observe(
        self, state: DrafterState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> DrafterState:
        """Takes in what was emitted and rolls back; rows with num_emitted = 0 stand still.

        Args:
          states: the target's last hidden states from which the emitted tokens were drawn, in
            order; only the first ``num_emitted[b]`` count.
        """
        ...


@pytree
class DraftParams:
    """Parameters of a drafter that draws its guesses: its own, and how it draws."""

    weights: Params
    sampling: Sampling


@dataclasses.dataclass(frozen=True)
class OpenDraft:
    """A draft that was loaded for a target."""

    # (gamma, stop_below) -> a drafter of ``gamma`` guesses a block. Raises ValueError for a gamma
    # out of range, or where it cannot stop early.
    make: Callable[[int, float], Drafter]
    # How guesses are drawn -> that drafter's parameters. Raises ValueError where it cannot draw
    # them so.
    params: Callable[[SamplingConfig], Params]
    weights: Params = ()  # What was loaded; () for a draft without parameters.
    model: LoadedModel | None = None  # The draft model, if it is one.
    # (tree, catch_up) -> a drafter of that tree; None for a draft of chains only. ``catch_up``:
    # tokens that a block may emit behind the guesses of its own that were accepted. Raises
    # ValueError for a tree that it cannot grow.
    make_tree: Callable[[Tree, int], Drafter] | None = None
    most_guesses: int = MOST_NODES  # Guesses in a row that it can make.
    chain: bool = True  # Whether it makes chains by gamma, too; else trees only.
    # Which trees it grows: chains side by side, any of a fixed shape, or best-first ones as well.
    trees: TreeShapes = "fixed"
    independent: bool = True  # Whether its siblings can be drawn with replacement.


# (topology, independent) -> a drafter of that shape; "independent": siblings with replacement.
MakeTree = Callable[[Topology, bool], Drafter]


class Opening(Protocol):
    """What a spec is opened for, and what it may ask to be loaded.

    Each method raises ValueError for something of another vocabulary than the target's, and
    CheckpointError for a file that cannot be read.
    """

    @property
    def target(self) -> LoadedModel:
        """The model that is drafted for."""
        ...

    def model(self, source: str) -> LoadedModel:
        """A draft model, by the names of :func:`specdec.load_pair`."""
        ...

    def heads(self, path: str) -> tuple[MakeTree, Params, int]:
        """What was trained on the target's hidden states, from a directory.

        Returns:
          what makes it, its parameters, and the guesses in a row that it can make.
        """
        ...

    def ngrams(self, path: str) -> NgramTables:
        """N-gram tables: a file, a directory that holds them, or a bundled pair's name."""
        ...


def prefix_states(target: Start) -> Float[Array, "b p d"]:
    """The target's last hidden state from which each prefix token was drawn, float32.

    Of a row's first token there is none: zeros stand for it, as they do in training.
    """
    return jnp.pad(target.states.astype(jnp.float32), ((0, 0), (1, 0), (0, 0)))


class OffsetHeads(Protocol):
    """K heads for a target of hidden width D, with logits over V tokens of it."""

    @property
    def count(self) -> int:
        """K, the most guesses in a row."""
        ...

    @property
    def width(self) -> int:
        """D."""
        ...

    def logits(self, params: Params, hidden: Float[Array, "b d"]) -> Float[Array, "b k v"]:
        """float32 logits of each head.

        Args:
          hidden: the target's last hidden state from which the newest token was drawn. Head 1 is
            for what follows that token.
        """
        ...

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        """As :meth:`specdec.models.base.Model.over_vocabulary`."""
        ...


class StateDraft(Protocol):
    """An autoregressive draft on a target's hidden states, of width D.

    Of each token it is given the state from which that was drawn: the target's own, or where that
    has not been there yet, what it made itself of the token before.
    """

    @property
    def width(self) -> int:
        """D."""
        ...

    def start(
        self, params: Params, batch: int, max_len: int, given: Encoded
    ) -> tuple[Encoded, Cache]:
        """Its view of the inputs, and an empty cache for ``max_len`` tokens.

        Args:
          given: what the target's ``start`` made of the inputs.
        """
        ...

    def extend(
        self, params: Params, encoded: Encoded, cache: Cache, tokens: Int[Array, "b t"],
        states: Float[Array, "b t d"], topology: Order = CHAIN, *, after: int = 0,
    ) -> tuple[Float[Array, "b t d"], Cache]:  # fmt: skip
        """:meth:`specdec.models.base.Model.extend` of tokens with their states; returns states."""
        ...

    def logits(self, params: Params, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """As :meth:`specdec.models.base.Model.logits`."""
        ...

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        """As :meth:`specdec.models.base.Model.over_vocabulary`."""
        ...

    def commit(self, cache: Cache, path: None, count: Int[Array, " b"]) -> Cache:
        """Keeps the first ``count[b]`` tokens just given; a negative count forgets tokens."""
        ...


class LookAhead(Protocol):
    """A target with L embeddings to stand behind a text, of hidden width D."""

    @property
    def count(self) -> int:
        """L, how many tokens they guess."""
        ...

    def start(self, params: Params, prompt: Prompt, max_len: int, encoded: Encoded) -> Cache:
        """A cache with the prefix but for its last token, and capacity for ``max_len`` more."""
        ...

    def extend(
        self, params: Params, encoded: Encoded, cache: Cache, tokens: Int[Array, "b p"],
        count: Int[Array, " b"],
    ) -> tuple[Float[Array, "b l1 d"], Cache]:  # fmt: skip
        """Feeds ``count[b]`` of row b's tokens, behind them the embeddings.

        Returns:
          the states of the last token and of each embedding, and the cache.
        """
        ...

    def logits(self, params: Params, hidden: Float[Array, "b l1 d"]) -> Float[Array, "b l1 v"]:
        """As :meth:`specdec.models.base.Model.logits`."""
        ...

    def over_vocabulary(self, params: Params, distribution: Distribution) -> Distribution:
        """As :meth:`specdec.models.base.Model.over_vocabulary`."""
        ...

    def commit(self, cache: Cache, path: None, count: Int[Array, " b"]) -> Cache:
        """As :meth:`StateDraft.commit`."""
        ...


@runtime_checkable
class DraftSpec(Protocol):
    """What to draft with: small, printable, nothing loaded."""

    def open(self, opening: Opening) -> OpenDraft:
        """Loads it for a target; raises as :class:`Opening` does."""
        ...


def chain(gamma: int) -> Topology:
    """The chain of gamma guesses.

    Raises:
      ValueError: gamma is not in 1..MOST_NODES.
    """
    return Topology.chain(whole("gamma", gamma, 1, MOST_NODES))


class ChainDrafter:
    """What drafters by gamma have in common: each guess follows the one before.

    Raises:
      ValueError: see :func:`chain`.
    """

    gamma: int  # Guesses a block.

    def __post_init__(self):
        chain(self.gamma)

    @property
    def topology(self) -> Topology:
        return chain(self.gamma)


def never_stopping(what: str, make: Callable[[int], Drafter]) -> Callable[[int, float], Drafter]:
    """:attr:`OpenDraft.make` of drafters by gamma that cannot end a block's guesses early."""

    def checked(gamma: int, stop_below: float) -> Drafter:
        if stop_below:
            raise ValueError(
                f"{what} draft cannot stop early: stop_below must be 0 with it, got {stop_below}."
            )
        return make(gamma)

    return checked
