"""Rows of tokens as batches of static shape, and a batch's trace as blocks of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from specdec.types import BlockInfo

_SMALLEST_BUCKET = 16


def bucket(length: int) -> int:
    """The static size that ``length`` is padded to: a power of two, at least 16.

    One program is compiled for each bucket, not for each length.
    """
    return max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows that are decoded together.

    Attributes:
      inputs: [B, S] int32, padded with ``pad_id``.
      row_ids: [B] indices into the texts; -1 for rows that only fill the batch up.
    """

    inputs: np.ndarray
    row_ids: np.ndarray


def make_batches(ids: Sequence[np.ndarray], batch_size: int, pad_id: int) -> Iterator[Batch]:
    """Rows of the same input bucket, ``batch_size`` at a time, the last filled up with padding."""
    by_bucket: dict[int, list[int]] = {}
    for row, tokens in enumerate(ids):
        by_bucket.setdefault(bucket(len(tokens)), []).append(row)
    for size in sorted(by_bucket):
        rows = by_bucket[size]
        for start in range(0, len(rows), batch_size):
            chosen = rows[start : start + batch_size]
            inputs = np.full((batch_size, size), pad_id, np.int32)
            row_ids = np.full(batch_size, -1, np.int32)
            for place, row in enumerate(chosen):
                inputs[place, : len(ids[row])] = ids[row]
                row_ids[place] = row
            yield Batch(inputs, row_ids)


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of one row, for people to look at.

    Attributes:
      accepted: guesses kept.
      rejected: guesses thrown away (after the end of the row: not looked at).
      correction: the verifier's own token, or None where the row ended inside the guesses.
    """

    accepted: list[int]
    rejected: list[int]
    correction: int | None


def blocks_of(trace: BlockInfo, row: int) -> list[Block]:
    """One row's blocks out of a trace whose leaves are [blocks, B, ...]."""
    blocks = []
    for number in range(trace.num_emitted.shape[0]):
        emitted = int(trace.num_emitted[number, row])
        if emitted == 0:
            break
        accepted = int(trace.num_accepted[number, row])
        made = int(trace.num_guesses[number, row])
        guesses = [int(t) for t in trace.draft_tokens[number, row, :made]]
        correction = int(trace.tokens[number, row, accepted]) if emitted > accepted else None
        blocks.append(Block(guesses[:accepted], guesses[accepted:], correction))
    return blocks
