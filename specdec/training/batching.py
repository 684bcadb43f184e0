"""Length-bucketed batches of token pairs in a handful of static shapes, a function of the step."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specdec.core.arguments import real, whole
from specdec.core.fields import Count, Natural, checked
from specdec.text.base import EOS_ID, PAD_ID


class TokenBatch(NamedTuple):
    """Token ids, int32 [B, S] and [B, T]: a text, EOS, then pads. Spare rows are all pads."""

    inputs: np.ndarray
    targets: np.ndarray


class TokenPair(NamedTuple):
    """One sentence pair's ids, without EOS."""

    input: Sequence[int]
    target: Sequence[int]


@checked()
class BatchingOptions:
    """Options for making batches of sentences."""

    # Of inputs, and of targets, about: rows of (S, T) are 2 * tokens_per_batch // (S + T).
    tokens_per_batch: Count = 4096
    # The static lengths, EOS included, by ascending S + T: L where inputs and targets share one, or
    # (S, T). An example goes into the first that it fits.
    lengths: tuple[int | tuple[int, int], ...] = (16, 24, 32, 48, 64, 128)
    join_weights: tuple[float, ...] = (1.0,)  # i: the share of i + 1 sentences joined.
    seed: Natural = 0  # Fixes the order, the joins and the shuffles.

    def __post_init__(self):
        if not isinstance(self.lengths, Sequence) or isinstance(self.lengths, str):
            raise ValueError(f"lengths must be a list of whole numbers, got {self.lengths!r}.")
        for length in (size for shape in self.shapes for size in shape):
            whole("lengths: a length", length, 2)
        for weight in self.join_weights:
            real("join_weights: a weight", weight, "a number of at least 0", 0)
        sums = [sum(shape) for shape in self.shapes]
        if not sums or sums != sorted(sums) or len(set(self.shapes)) < len(sums):
            raise ValueError(f"lengths must be ascending, got {self.lengths}.")
        if self.rows(self.shapes[-1]) < 1:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} is less than one row of "
                f"{self.lengths[-1]} tokens."
            )
        if not sum(self.join_weights):
            raise ValueError(f"join_weights must be shares, got {self.join_weights}.")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """``lengths`` as (S, T)."""
        return [(n[0], n[1]) if isinstance(n, Sequence) else (n, n) for n in self.lengths]

    def rows(self, shape: tuple[int, int]) -> int:
        """B of a batch of this (S, T)."""
        return 2 * self.tokens_per_batch // sum(shape)


class Batches:
    """Batches of ``pairs``, epoch after epoch; batch number ``step`` depends on nothing else.

    In every epoch each pair occurs exactly once, alone or joined to its neighbours in that epoch's
    random order. Joining concatenates ids, which is what encoding the space-joined texts gives.

    Args:
      eos_id: the token behind targets.
      pad_id: the token that fills rows.
      input_ends: the tokens behind inputs; None for EOS.

    Raises:
      ValueError: there are no pairs, or one does not fit the longest length.
    """

    def __init__(
        self, pairs: Sequence[TokenPair], options: BatchingOptions, eos_id: int = EOS_ID,
        pad_id: int = PAD_ID, input_ends: Sequence[int] | None = None,
    ):  # fmt: skip
        if not pairs:
            raise ValueError("No examples.")
        self._pairs = pairs
        self._options = options
        self.pad_id = pad_id
        self._ends = ((eos_id,) if input_ends is None else tuple(input_ends), (eos_id,))
        # [N, 2] ids without what stands behind them.
        self._sizes = np.array([(len(p.input), len(p.target)) for p in pairs])
        self._shapes = np.array(options.shapes)
        too_long = np.flatnonzero(~self._fits(self._sizes).any(axis=1))
        if too_long.size:
            raise ValueError(
                f"{too_long.size} example(s) exceed {options.lengths[-1]} tokens with EOS; the "
                f"first is number {too_long[0] + 1}."
            )

    def _fits(self, sizes: np.ndarray) -> np.ndarray:
        """Whether sizes [..., 2], without the tokens behind, fit each shape, [..., shapes]."""
        whole = sizes + np.array([len(ends) for ends in self._ends])
        return np.all(whole[..., None, :] <= self._shapes, axis=-1)

    def fingerprint(self) -> str:
        """Identifies the examples and the options, so that a resumed run notices a change."""
        ids = np.concatenate([np.asarray(side, np.int32) for pair in self._pairs for side in pair])
        crc = zlib.crc32(ids.tobytes(), zlib.crc32(self._sizes.tobytes()))
        return f"{len(self._pairs)} examples, crc32 {crc:08x}, {self._options}"

    def from_step(self, step: int) -> Iterator[TokenBatch]:
        """Batches number ``step``, ``step + 1``, and so on without end."""
        for epoch in itertools.count():
            plan = self._plan(epoch)
            yield from itertools.starmap(self._assemble, plan[step:])
            step = max(0, step - len(plan))

    def epoch(self, epoch: int) -> Iterator[TokenBatch]:
        """The batches of one epoch."""
        return itertools.starmap(self._assemble, self._plan(epoch))

    def _plan(self, epoch: int) -> list[tuple[tuple[int, int], list[np.ndarray]]]:
        """(shape, groups of pair indices) of every batch of an epoch."""
        shapes = self._options.shapes
        rng = np.random.default_rng([self._options.seed, epoch])
        buckets: list[list[np.ndarray]] = [[] for _ in shapes]
        for group in self._groups(rng):
            buckets[int(np.argmax(self._fits(self._sizes[group].sum(axis=0))))].append(group)
        plan = []
        for shape, groups in zip(shapes, buckets, strict=True):
            rows = self._options.rows(shape)
            plan += [(shape, groups[i : i + rows]) for i in range(0, len(groups), rows)]
        return [plan[i] for i in rng.permutation(len(plan))]

    def _groups(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Cuts a random order of the pairs into the sentences of each example."""
        weights = np.asarray(self._options.join_weights) / sum(self._options.join_weights)
        order = rng.permutation(len(self._pairs))
        counts = 1 + rng.choice(len(weights), size=len(order), p=weights)
        for count in counts:
            if not order.size:
                return
            # Sums grow, so the groups that fit come first; one pair alone always fits.
            sums = np.cumsum(self._sizes[order[:count]], axis=0)
            group, order = np.split(order, [int(self._fits(sums).any(axis=1).sum())])
            yield group

    def _assemble(self, shape: tuple[int, int], groups: list[np.ndarray]) -> TokenBatch:
        rows = self._options.rows(shape)
        batch = TokenBatch(*(np.full((rows, length), self.pad_id, np.int32) for length in shape))
        for row, group in enumerate(groups):
            for side in (0, 1):
                ids = [token for index in group for token in self._pairs[index][side]]
                ids += self._ends[side]
                batch[side][row, : len(ids)] = ids
        return batch
