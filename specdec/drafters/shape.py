"""The shape of a block's guesses, as a user gives it: a chain or a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from specdec.core.arguments import whole
from specdec.core.fields import Share, Whole, checked
from specdec.core.topology import MOST_NODES, Topology


@checked()
class Chain:
    """A chain of guesses: each follows the one before.

    Attributes:
      gamma: how many.
      stop_below: the draft ends them after one less likely than this.

    Raises:
      ValueError: gamma is not in 1..MOST_NODES, or stop_below not in [0, 1].
    """

    gamma: Annotated[int, Whole(1, MOST_NODES)]
    stop_below: Share = 0.0
    independent: ClassVar[bool] = False  # Siblings; see :class:`Tree`.

    @property
    def topology(self) -> Topology:
        """Each guess follows the one before."""
        return Topology.chain(self.gamma)

    @property
    def levels(self) -> int:
        """D, guesses in a row."""
        return self.gamma

    def __str__(self) -> str:
        return f"gamma {self.gamma}"


@checked()
class Tree:
    """Shape of a tree: the guesses for each position. Give one of three shapes.

    Attributes:
      branching: the children of every node, by level: (3, 2, 1) has 3 + 6 + 6 nodes, (4, 1, 1) is
        four chains of three.
      parents: of each node, -1 for what follows the last token; in the order of levels.
      nodes: that many of the likeliest nodes by the draft's own probabilities, found anew in each
        block, at most ``depth`` deep, with at most ``siblings`` for one position. Such guesses are
        point masses, whatever the temperature.
      depth, siblings: only with ``nodes``.
      independent: siblings are drawn with replacement, so they may repeat; K-SEQ needs that.

    Raises:
      ValueError: no shape or more than one, or an invalid one.
    """

    branching: Sequence[int] | None = None
    parents: Sequence[int] | None = None
    nodes: int | None = None
    depth: int | None = None
    siblings: int | None = None
    independent: bool = False

    def __post_init__(self):
        shapes = [
            name for name in ("branching", "parents", "nodes") if getattr(self, name) is not None
        ]
        if len(shapes) != 1:
            raise ValueError(
                "A tree has one of branching, parents and nodes, such as Tree((3, 2, 1)) or "
                f"Tree(nodes=16, depth=5); got {' and '.join(shapes) or 'none'}."
            )
        if self.nodes is None:
            for name in ("depth", "siblings"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is of a tree with nodes; this one has {shapes[0]}.")
            object.__setattr__(self, shapes[0], self._numbers(shapes[0]))
        else:
            self._check_best_first()
        if self.size > MOST_NODES:
            raise ValueError(
                f"A tree has at most {MOST_NODES} nodes, this one has {self.size}: {self}."
            )

    def _numbers(self, name: str) -> tuple[int, ...]:
        given = getattr(self, name)
        if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not len(given):
            raise ValueError(
                f"{name} must be a few whole numbers, such as (3, 2, 1), got {given!r}."
            )
        least = {"branching": 1, "parents": -1}[name]
        numbers = tuple(whole(f"each of {name}", each, least) for each in given)
        if name == "parents":
            depths = Topology(numbers).depths()
            if (np.diff(depths) < 0).any():
                raise ValueError(f"parents must be in the order of levels, got {numbers}.")
        return numbers

    def _check_best_first(self) -> None:
        if self.independent:
            raise ValueError("The likeliest nodes are not drawn: independent must be False.")
        if self.depth is None:
            raise ValueError(
                "A tree with nodes needs its depth too, such as Tree(nodes=16, depth=5)."
            )
        checked = {
            "nodes": whole("nodes", self.nodes, 1), "depth": whole("depth", self.depth, 1),
            "siblings": whole("siblings", 4 if self.siblings is None else self.siblings, 1),
        }  # fmt: skip
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        k, depth = checked["siblings"], checked["depth"]
        most = k + (depth - 1) * k * k
        if not depth <= checked["nodes"] <= most:
            raise ValueError(
                f"Tree(nodes, depth={depth}, siblings={k}) has {depth} to {most} nodes to choose "
                f"from, got nodes = {self.nodes}."
            )

    @property
    def topology(self) -> Topology | None:
        """Topology of a fixed shape; None where it is found in each block."""
        if self.branching is not None:
            return Topology.branching(self.branching)
        return None if self.parents is None else Topology(tuple(self.parents))

    @property
    def size(self) -> int:
        """N, guesses of a block."""
        if self.branching is not None:
            count, level = 0, 1
            for children in self.branching:
                level *= children
                count += level
                if count > 1e9:
                    break  # It is no tree anyway.
            return count
        return self.nodes if self.parents is None else len(self.parents)  # pyright: ignore[reportReturnType]

    @property
    def levels(self) -> int:
        """D, guesses in a row."""
        topology = self.topology
        return self.depth if topology is None else topology.depth  # pyright: ignore[reportReturnType]

    @property
    def most_siblings(self) -> int:
        """K, guesses of one position."""
        topology = self.topology
        return self.siblings if topology is None else topology.siblings  # pyright: ignore[reportReturnType]

    def __str__(self) -> str:
        kind = ", independent" if self.independent else ""
        if self.branching is not None:
            return f"tree {'-'.join(map(str, self.branching))}{kind}"
        if self.parents is not None:
            return f"tree of {self.size} nodes, {self.levels} deep{kind}"
        return f"best-first tree of {self.nodes} nodes, {self.depth} deep"


Shape = Chain | Tree


def as_tree(given: Any) -> Tree:
    """A tree as users give it: a shape, or the branching of one.

    Raises:
      ValueError: it is neither.
    """
    return given if isinstance(given, Tree) else Tree(branching=given)


def fixed_shape(shape: Shape, what: str) -> Topology:
    """The topology of a shape, for a draft that cannot choose it itself.

    Raises:
      ValueError: a chain is to stop early, or a tree is to be found in each block.
    """
    if isinstance(shape, Chain) and shape.stop_below:
        raise ValueError(
            f"With {what} a block cannot stop early: stop_below must be 0, got {shape.stop_below}."
        )
    if shape.topology is None:
        raise ValueError(
            f"A best-first tree needs a draft model; with {what} give its branching, such as "
            "(3, 2, 1)."
        )
    return shape.topology
