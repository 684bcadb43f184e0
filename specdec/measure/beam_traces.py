"""Speculative beams block by block, for a terminal.

A line is one target call: how many of the draft's guesses it scored, and what the live hypotheses
went on with at each level, those that had not been guessed in braces.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec.data.vocabulary import Tokenizer
from specdec.decoding.speculative_beam import SearchedBlock
from specdec.measure.traces import token_text

_ENDS = {"miss": "missed", "done": "done", "limit": "at the limit", "depth": "all survived"}


def terminal(blocks: Sequence[SearchedBlock], vocabulary: Tokenizer | None) -> str:
    """A row's blocks as text."""
    lines = []
    for number, block in enumerate(blocks, start=1):
        *taken, last = block.survivors
        shown = [" ".join(token_text(vocabulary, token) for token in level) for level in taken]
        shown.append(
            " ".join(
                f"{{{token_text(vocabulary, token)}}}" if token in block.lost
                else token_text(vocabulary, token)
                for token in last
            )
        )  # fmt: skip
        count = sum(map(len, block.guesses))
        levels = len(block.survivors)
        head = f"{count} guesses, {levels} level{'s' * (levels > 1)}, {_ENDS[block.end]}"
        lines.append(f"{number:5} {head}: {' / '.join(shown)}")
    return "\n".join(lines)
