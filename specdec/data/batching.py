"""Length-bucketed batches of token pairs in a handful of static shapes, a function of the step."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specdec.data.vocabulary import EOS_ID, PAD_ID, Vocabulary


class Batch(NamedTuple):
    """Token ids, int32 [B, L] each; every text ends in EOS, then pads. Spare rows are all pads."""

    inputs: np.ndarray
    targets: np.ndarray


class TokenPair(NamedTuple):
    """One sentence pair's ids, without EOS."""

    input: Sequence[int]
    target: Sequence[int]


@dataclasses.dataclass(frozen=True)
class BatchingOptions:
    """How sentences become batches.

    Attributes:
      tokens_per_batch: B * L, about; a batch of length L has ``tokens_per_batch // L`` rows.
      lengths: the static lengths L, ascending, EOS included; inputs and targets share one.
      join_weights: weight i is the share of examples made of i + 1 sentences joined.
      seed: fixes the order, the joins and the shuffles.
    """

    tokens_per_batch: int = 4096
    lengths: tuple[int, ...] = (16, 24, 32, 48, 64, 128)
    join_weights: tuple[float, ...] = (1.0,)
    seed: int = 0

    def __post_init__(self):
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"lengths must be ascending, got {self.lengths}.")
        if self.tokens_per_batch < self.lengths[-1]:
            raise ValueError(
                f"tokens_per_batch={self.tokens_per_batch} is less than one row of "
                f"{self.lengths[-1]} tokens."
            )
        if not self.join_weights or min(self.join_weights) < 0 or not sum(self.join_weights):
            raise ValueError(f"join_weights must be shares, got {self.join_weights}.")


def tokenize_pairs(pairs: Sequence[tuple[str, str]], vocabulary: Vocabulary) -> list[TokenPair]:
    """Ids of (input, target) texts."""
    return [TokenPair(vocabulary.encode(a), vocabulary.encode(b)) for a, b in pairs]


class Batches:
    """Batches of ``pairs``, epoch after epoch; batch number ``step`` depends on nothing else.

    In every epoch each pair occurs exactly once, alone or joined to its neighbours in that epoch's
    random order. Joining concatenates ids, which is what encoding the space-joined texts gives.

    Raises:
      ValueError: there are no pairs, or one does not fit the longest length.
    """

    def __init__(self, pairs: Sequence[TokenPair], options: BatchingOptions):
        if not pairs:
            raise ValueError("No examples.")
        self._pairs = pairs
        self._options = options
        # [N, 2] ids without EOS.
        self._sizes = np.array([(len(p.input), len(p.target)) for p in pairs])
        too_long = np.flatnonzero(self._sizes.max(axis=1) >= options.lengths[-1])
        if too_long.size:
            raise ValueError(
                f"{too_long.size} example(s) exceed {options.lengths[-1]} tokens with EOS; the "
                f"first is number {too_long[0] + 1}."
            )

    def fingerprint(self) -> str:
        """Identifies the examples and the options, so that a resumed run can tell a change."""
        ids = np.concatenate([np.asarray(side, np.int32) for pair in self._pairs for side in pair])
        crc = zlib.crc32(ids.tobytes(), zlib.crc32(self._sizes.tobytes()))
        return f"{len(self._pairs)} examples, crc32 {crc:08x}, {self._options}"

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches number ``step``, ``step + 1``, and so on without end."""
        epoch = 0
        while True:
            plan = self._plan(epoch)
            for length, groups in plan[step:]:
                yield self._assemble(length, groups)
            step = max(0, step - len(plan))
            epoch += 1

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        for length, groups in self._plan(epoch):
            yield self._assemble(length, groups)

    def _plan(self, epoch: int) -> list[tuple[int, list[np.ndarray]]]:
        """(length, groups of pair indices) of every batch of an epoch."""
        options = self._options
        rng = np.random.default_rng([options.seed, epoch])
        buckets: dict[int, list[np.ndarray]] = {length: [] for length in options.lengths}
        for group in self._groups(rng):
            needed = self._sizes[group].sum(axis=0).max() + 1
            buckets[next(length for length in options.lengths if length >= needed)].append(group)
        plan = []
        for length, groups in buckets.items():
            rows = options.tokens_per_batch // length
            plan += [(length, groups[i : i + rows]) for i in range(0, len(groups), rows)]
        return [plan[i] for i in rng.permutation(len(plan))]

    def _groups(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Cuts a random order of the pairs into the sentences of each example."""
        weights = np.asarray(self._options.join_weights) / sum(self._options.join_weights)
        order = rng.permutation(len(self._pairs))
        counts = 1 + rng.choice(len(weights), size=len(order), p=weights)
        start = 0
        for count in counts:
            if start == len(order):
                return
            group = order[start : start + count]
            totals = np.cumsum(self._sizes[group], axis=0).max(axis=1)
            group = group[: max(1, int(np.sum(totals < self._options.lengths[-1])))]
            yield group
            start += len(group)

    def _assemble(self, length: int, groups: list[np.ndarray]) -> Batch:
        arrays = np.full((2, self._options.tokens_per_batch // length, length), PAD_ID, np.int32)
        for row, group in enumerate(groups):
            for side in (0, 1):
                ids = [token for index in group for token in self._pairs[index][side]]
                arrays[side, row, : len(ids) + 1] = [*ids, EOS_ID]
        return Batch(*arrays)
