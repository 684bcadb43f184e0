"""The contract of drafters, and of the specs that are opened for a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.core.pytrees import pytree
from specdec.core.topology import MOST_NODES, AnyTopology, Topology
from specdec.drafters.ngram_tables import NgramTables
from specdec.drafters.shape import Shape
from specdec.models.base import LoadedModel
from specdec.types import (
    Draft,
    DrafterState,
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
        """Shape of every draft: its ``depth`` (gamma, for a chain) and ``size`` (nodes)."""
        ...

    def init(self, params: Params, prompt: Prompt, max_len: int, target: Start) -> DrafterState:
        """State before the first block, for outputs of up to ``max_len`` tokens.

        Args:
          target: the target's ``Start`` of the prompt.
        """
        ...

    def propose(
        self, params: Params, state: DrafterState, random: RandomSource, rules: RuleStates
    ) -> tuple[Draft, DrafterState]:
        """Guesses the tokens behind the emitted ones.

        Args:
          rules: the states of the target's rules behind these, for a draft that applies them, too.
        """
        ...

    def observe(
        self, state: DrafterState, verdict: Verdict, states: Float[Array, "b d1 w"]
    ) -> DrafterState:
        """Takes in the emitted tokens and rolls back; rows with num_emitted = 0 stand still.

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

    # (shape, catch_up) -> a drafter of that shape. ``catch_up``: tokens that a block may emit
    # behind the accepted guesses of its own. Raises ValueError for a shape that it cannot grow.
    make: Callable[[Shape, int], Drafter]
    # How guesses are drawn -> that drafter's parameters. Raises ValueError where it cannot draw
    # them so.
    params: Callable[[SamplingConfig], Params]
    weights: Params = ()  # Loaded parameters; () for a draft without any.
    model: LoadedModel | None = None  # The draft model, if it is one.
    most_guesses: int = MOST_NODES  # Guesses in a row that it can make.
    chain: bool = True  # Whether it makes chains by gamma, too; else trees only.
    # Which trees it grows: chains side by side, any of a fixed shape, or best-first ones as well;
    # None for a draft of chains only.
    trees: TreeShapes | None = "fixed"
    independent: bool = True  # Whether its siblings can be drawn with replacement.
    encodes: bool = False  # Whether it reads inputs with an encoder of its own.
    follows: bool = False  # Whether it follows texts that are given with the rows.


# (topology, independent) -> a drafter of that shape; "independent": siblings with replacement.
MakeTree = Callable[[Topology, bool], Drafter]


class Opening(Protocol):
    """The target that a spec is opened for, and the files that it may ask to be loaded.

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
        """A draft that was trained on the target's hidden states, from a directory.

        Returns:
          a function that makes it, its parameters, and the guesses in a row that it can make.
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


@runtime_checkable
class DraftSpec(Protocol):
    """Description of a draft: small, printable, nothing loaded."""

    def open(self, opening: Opening) -> OpenDraft:
        """Loads it for a target; raises as :class:`Opening` does."""
        ...


class ChainDrafter:
    """Base of drafters by gamma: each guess follows the one before."""

    gamma: int  # Guesses a block.

    @property
    def topology(self) -> Topology:
        return Topology.chain(self.gamma)
