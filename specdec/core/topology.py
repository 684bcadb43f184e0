"""Which token of a block follows which.

Shapes: B rows, N nodes, D depth (N = D = gamma for a chain).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec.core.pytrees import pytree, static_field

MOST_NODES = 1024  # Guesses of a block: its masks have the square of it.


@pytree
class Topology:
    """Which token each token of a block follows, known when the program is compiled.

    Attributes:
      parents: ``parents[i] < i`` is the index of node i's parent; -1 means that it follows
        the cache's last committed token.

    Raises:
      ValueError: if a parent does not come before its child.
    """

    parents: tuple[int, ...] = static_field()

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

    @classmethod
    def branching(cls, levels: Sequence[int]) -> Topology:
        """Every node of level i has ``levels[i]`` children; nodes are in the order of levels."""
        parents, above = [], [-1]
        for children in levels:
            first = len(parents)
            parents += [parent for parent in above for _ in range(children)]
            above = list(range(first, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def of_sizes(cls, size: int, depth: int, siblings: int) -> Topology:
        """A chain of ``depth`` nodes; the other nodes are siblings of nodes of the chain."""
        positions = range(-1, depth - 1)
        extra = [p for p in positions for _ in range(siblings - 1)]
        extra += [p for p in range(depth, size) for _ in range(siblings)]
        return cls((*positions, *extra[: size - depth]))

    @property
    def size(self) -> int:
        """N, how many nodes."""
        return len(self.parents)

    @property
    def siblings(self) -> int:
        """K, the most children that a node, or the last committed token, has."""
        return max(Counter(self.parents).values(), default=0)

    @property
    def depth(self) -> int:
        """D, how many levels; gamma for a chain."""
        return int(max(self.depths() + 1, default=0))

    @property
    def is_chain(self) -> bool:
        """Whether this is the tree with one branch."""
        return self == Topology.chain(self.size)

    def rooted(self) -> Topology:
        """The same under a root of its own, node 0: the block that a target scores."""
        return Topology((-1, *(parent + 1 for parent in self.parents)))

    def with_filler(self, size: int, more: int) -> Topology:
        """The first ``size`` nodes, and behind them ``more`` that nothing follows."""
        if self == CHAIN:
            return self
        return Topology((*self.parents[:size], *[-1] * more))

    def depths(self) -> Int[np.ndarray, " n"]:
        """Each node's distance from the last committed token, minus one."""
        found = np.zeros(self.size, np.int32)
        for i, parent in enumerate(self.parents):
            found[i] = 0 if parent < 0 else found[parent] + 1
        return found

    def ranks(self) -> Int[np.ndarray, " n"]:
        """Each node's index among its siblings, in 0..K-1."""
        return np.array([self.parents[:i].count(p) for i, p in enumerate(self.parents)], np.int32)

    def ancestors(self) -> Bool[np.ndarray, "n n"]:
        """Whether node j is node i or one of its ancestors."""
        found = np.eye(self.size, dtype=bool)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                found[i] |= found[parent]
        return found


CHAIN = Topology.chain(0)  # A chain of however many tokens there are.


@pytree
class TracedTopology:
    """A tree whose shape is found while decoding: traced parents of a static number of nodes.

    It has the methods of :class:`Topology`, with a leading axis of rows. A parent must come before
    its children.

    Attributes:
      parents: [B, N], in -1..i-1 for node i.
      depth: D, the maximum depth of a node.
      siblings: K, the maximum number of children of a node.
    """

    parents: Int[Array, "b n"]
    depth: int = static_field()
    siblings: int = static_field()
    is_chain: bool = static_field(default=False)

    @property
    def size(self) -> int:
        """N."""
        return self.parents.shape[1]

    def rooted(self) -> TracedTopology:
        """See :meth:`Topology.rooted`."""
        parents = jnp.pad(self.parents + 1, ((0, 0), (1, 0)), constant_values=-1)
        return TracedTopology(parents, self.depth + 1, self.siblings)

    def with_filler(self, size: int, more: int) -> TracedTopology:
        """See :meth:`Topology.with_filler`."""
        padding = ((0, 0), (0, more))
        parents = jnp.pad(self.parents[:, :size], padding, constant_values=-1)
        return TracedTopology(parents, self.depth, self.siblings)

    def depths(self) -> Int[Array, "b n"]:
        """See :meth:`Topology.depths`."""
        return jnp.sum(self.ancestors(), axis=-1) - 1

    def ranks(self) -> Int[Array, "b n"]:
        """See :meth:`Topology.ranks`."""
        same = self.parents[:, :, None] == self.parents[:, None, :]
        return jnp.sum(jnp.tril(same, -1), axis=-1, dtype=jnp.int32)

    def ancestors(self) -> Bool[Array, "b n n"]:
        """See :meth:`Topology.ancestors`."""
        nodes = jnp.arange(self.size)
        family = jnp.broadcast_to(nodes[:, None] == nodes, (*self.parents.shape, self.size))
        at = jnp.broadcast_to(nodes, self.parents.shape)
        for _ in range(self.depth - 1):
            up = jnp.take_along_axis(self.parents, jnp.maximum(at, 0), axis=1)
            at = jnp.where(at >= 0, up, -1)
            family |= at[..., None] == nodes
        return family


AnyTopology = Topology | TracedTopology


@pytree
class Forest:
    """Tokens of several sequences in one row of a cache: each says which entries it follows.

    No entry is followed because it is committed: a cache's length is only where it is written next.
    Beams are such sequences, which share what they have in common.

    Attributes:
      seen: [B, T, M] which of the cache's entries each token of a call attends to. M is what
        ``Model.start`` is asked for: the prefix but for its last token, and ``max_len``.
      positions: [B, T] each token's own, in its sequence.
      entries: [B, M] the positions of what the cache holds.
    """

    is_chain: ClassVar[bool] = False

    seen: Bool[Array, "b t m"]
    positions: Int[Array, "b t"]
    entries: Int[Array, "b m"]

    def with_filler(self, size: int, more: int) -> Forest:
        """With ``more`` tokens behind a call's own that attend to nothing.

        ``size`` is for topologies: a forest has the tokens of one call.
        """
        del size
        padding = ((0, 0), (0, more))
        seen = jnp.pad(self.seen, (*padding, (0, 0)))
        return Forest(seen, jnp.pad(self.positions, padding), self.entries)

    def over(self, max_len: int) -> Forest:
        """For a cache with capacity for more entries than are followed."""
        padding = (0, max_len - self.entries.shape[1])
        seen = jnp.pad(self.seen, ((0, 0), (0, 0), padding))
        return Forest(seen, self.positions, jnp.pad(self.entries, ((0, 0), padding)))


Order = AnyTopology | Forest
