"""Blocks of a row out of a trace's arrays, for people to look at."""

from __future__ import annotations

import dataclasses

import numpy as np

from specdec.decoding.beam_blocks import ENDS, BeamBlock
from specdec.types import BlockInfo


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of one row, for people to look at."""

    accepted: list[int]  # Guesses kept.
    # Guesses thrown away: of a chain all that follow, of a tree those of the next position. After
    # the end of the row they were not looked at.
    rejected: list[int]
    # The verifier's own token, or None where the row ended inside the guesses.
    correction: int | None
    # Of a tree: for each accepted guess the others of its position, in order. None for a chain.
    siblings: list[list[int]] | None = None


def blocks_of(trace: BlockInfo, row: int) -> list[Block]:
    """One row's blocks out of a trace whose leaves are [B, blocks, ...].

    A tree that has one branch in a block is a chain there.
    """
    blocks = []
    for number in range(trace.num_emitted.shape[1]):
        emitted = int(trace.num_emitted[row, number])
        if emitted == 0:
            break
        accepted = int(trace.num_accepted[row, number])
        made = int(trace.num_guesses[row, number])
        guesses, parents, path, tokens = (
            leaf[row, number].tolist()
            for leaf in (trace.draft_tokens, trace.parents, trace.path, trace.tokens)
        )
        guesses, parents = guesses[:made], parents[:made]
        correction = tokens[accepted] if emitted > accepted else None
        if parents == list(range(-1, made - 1)):
            blocks.append(Block(guesses[:accepted], guesses[accepted:], correction))
            continue
        # Nodes of the scored block: guess i is node i + 1.
        kept = [node - 1 for node in path[: accepted + 1]]
        levels = [
            [i for i, parent in enumerate(parents) if parent == above and i not in kept]
            for above in kept
        ]
        *siblings, rejected = [[guesses[i] for i in level] for level in levels]
        taken = [guesses[i] for i in kept[1:]]
        blocks.append(Block(taken, rejected, correction, siblings))
    return blocks


@dataclasses.dataclass(frozen=True)
class SearchedBlock:
    """One block of one row, for people to look at.

    Attributes:
      guesses: the draft's tokens, of each level.
      survivors: tokens of the live hypotheses, at each level that was taken.
      lost: those of the last level that had not been guessed, if that ended the block.
      end: why it ended, of :data:`specdec.decoding.beam_blocks.ENDS`.
    """

    guesses: list[list[int]]
    survivors: list[list[int]]
    lost: list[int]
    end: str


def searched_blocks(trace: BeamBlock, row: int, wide: int) -> list[SearchedBlock]:
    """One row's blocks out of a trace.

    Args:
      wide: W.
    """
    found = []
    gamma = trace.kept.shape[2] - 1
    for number in range(trace.num_levels.shape[1]):
        count = int(trace.num_levels[row, number])
        if not count:
            break
        tokens, kept, newest = (
            np.asarray(leaf[row, number]) for leaf in (trace.tokens, trace.kept, trace.newest)
        )
        end = ENDS[int(trace.end[row, number])]
        lost = newest[np.asarray(trace.lost[row, number])].tolist() if end == "miss" else []
        survivors = [*tokens[kept[1:count]].tolist(), newest.tolist()]
        guesses = tokens[wide:].reshape(gamma, -1).tolist() if gamma else []
        found.append(SearchedBlock(guesses, survivors, lost, end))
    return found
