"""Views of the tokens of a call, by the kind of a stack's positions: biases of scores, and turns.

A token turns, and differs from others, by its position in its own sequence: a node by its
depth. A cache holds all entries; layers that see a window mask the others by their positions.

Shapes: B batch, S input length, T block length, M cache length, H heads, K head_dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec.core.topology import Order
from specdec.models import cache as kv
from specdec.models.attention import NEG_INF
from specdec.models.partitioning import constrain
from specdec.models.transformer.arithmetic import angles, relative_position_buckets, within
from specdec.models.transformer.config import Absolute, Relative, Stack

Table: TypeAlias = Float[Array, "h r"] | None  # Position biases of each bucket, if there are such.


class View(NamedTuple):
    """A layer's tokens: what is added to their scores, and by how much they turn."""

    bias: Float[Array, "#b #h #t m"]
    by: Float[Array, "b t k/2"] | None = None


Views: TypeAlias = Callable[[kv.Number, Table], View]  # Of a layer, by its number and own table.


@dataclasses.dataclass(frozen=True)
class Block:
    """A call's tokens in a cache."""

    topology: Order
    length: Int[Array, " b"]
    max_len: int
    count: int
    after: int

    @property
    def seen(self) -> Bool[Array, "b t m"]:
        """Which entries each token sees."""
        return kv.block_mask(self.topology, self.length, self.max_len, self.count, self.after)

    @property
    def positions(self) -> Int[Array, "b t"]:
        """The tokens' own."""
        return kv.token_positions(self.topology, self.length, self.count, self.after)

    @property
    def entries(self) -> Int[Array, "b m"]:
        """Positions of the cache's entries."""
        size = self.after + self.count
        return kv.slot_positions(self.topology, self.length, self.max_len, size)


class Positions(Protocol):
    """Views of an encoder's layers, and of a decoder's, whose stack may have a table."""

    def encoder(self, table: Table, mask: Bool[Array, "b s"]) -> Views: ...

    def decoder(self, table: Table, block: Block) -> Views: ...


def views_of(stack: Stack) -> Positions:
    """The views of a stack with its positions."""
    if isinstance(stack.positions, Relative):
        return RelativeViews(stack.positions)
    return AbsoluteViews() if isinstance(stack.positions, Absolute) else RotaryViews(stack)


@dataclasses.dataclass(frozen=True)
class RelativeViews:
    """Biases by distance."""

    positions: Relative

    def encoder(self, table: Table, mask: Bool[Array, "b s"]) -> Views:
        padding, at = hidden_padding(mask), jnp.arange(mask.shape[1])
        buckets = self._buckets(at[None, :] - at[:, None], bidirectional=True)
        return _of_tables(table, lambda table: table[:, buckets] + padding)

    def decoder(self, table: Table, block: Block) -> Views:
        mask, at = block.seen, block.positions
        buckets = self._buckets(block.entries[:, None, :] - at[:, :, None], bidirectional=False)

        def bias_of(table: Float[Array, "h r"]) -> Float[Array, "b h t m"]:
            bias = table[:, buckets].transpose(1, 0, 2, 3)
            bias = constrain(bias, ("batch", "heads", "length", None))
            return jnp.where(mask[:, None], bias, NEG_INF)

        return _of_tables(table, bias_of)

    def _buckets(self, relative: Int[Array, "*shape"], *, bidirectional: bool) -> Array:
        return relative_position_buckets(relative, self.positions, bidirectional=bidirectional)


def _of_tables(shared: Table, bias_of: Callable[[Array], Float[Array, "b h t m"]]) -> Views:
    """Views of layers with a table in common, or each with its own."""
    if shared is None:
        return lambda i, own: View(bias_of(cast(Array, own)))
    view = View(bias_of(shared))
    return lambda i, own: view


class AbsoluteViews:
    """Nothing but masks: positions are in the states."""

    def encoder(self, table: Table, mask: Bool[Array, "b s"]) -> Views:
        view = View(hidden_padding(mask))
        return lambda i, own: view

    def decoder(self, table: Table, block: Block) -> Views:
        view = View(jnp.where(block.seen, 0.0, NEG_INF)[:, None])
        return lambda i, own: view


@dataclasses.dataclass(frozen=True)
class RotaryViews:
    """Turns, and windows. Keys are cached turned."""

    stack: Stack

    def encoder(self, table: Table, mask: Bool[Array, "b s"]) -> Views:
        positions = jnp.arange(mask.shape[1])[None]
        return self._views(mask[:, None], positions, positions)

    def decoder(self, table: Table, block: Block) -> Views:
        return self._views(block.seen, block.positions, block.entries)

    def _views(
        self, seen: Bool[Array, "b t m"], positions: Int[Array, "b t"], entries: Int[Array, "b m"]
    ) -> Views:
        """Views of layers that see all, and of those that see a window."""
        found, stack = {}, self.stack
        slides = [stack.slides(i) for i in range(stack.num_layers)]
        for sliding in sorted(set(slides)):
            mask = seen
            if sliding and stack.window is not None:
                mask = seen & within(stack.window, positions, entries)
            bias = jnp.where(mask, 0.0, NEG_INF)[:, None]
            by = angles(stack.rope_of(sliding), stack.head_dim, positions)
            found[sliding] = View(bias, by)

        def view(number: kv.Number, own: Table) -> View:
            if isinstance(number, int):
                return found[slides[number]]
            if len(found) == 1:
                return found[slides[0]]
            which = jnp.asarray(slides)[number]
            return jax.tree.map(lambda a, b: jnp.where(which, a, b), found[True], found[False])

        return view


def hidden_padding(mask: Bool[Array, "b s"]) -> Float[Array, "b 1 1 s"]:
    """Attention bias that hides filler of the inputs."""
    return jnp.where(mask, 0.0, NEG_INF)[:, None, None, :]
