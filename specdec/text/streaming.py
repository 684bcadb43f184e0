"""Text as it is accepted: what a decode has come to after each block, in whole characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from specdec.decoding.hypotheses import End
from specdec.text.base import Tokenizer, common

_UNKNOWN = "\ufffd"  # Stands for bytes that are no character yet.
_TORN = "<0xC3>"  # How vocabularies with pieces of bytes write one that is no character by itself.


@dataclasses.dataclass(frozen=True)
class Piece:
    """Text and tokens that a block adds to an output.

    Attributes:
      text: whole characters that nothing changes any more; it may be empty, and then comes with a
        later piece. All pieces together are the output's text. Without a vocabulary always empty.
      tokens: [T] all that the block emitted.
      accepted: how many of these were guesses of the draft.
      ended: why the output ends with this piece; None for all but the last one.
    """

    text: str
    tokens: np.ndarray
    accepted: int
    ended: End | None = None

    def __str__(self) -> str:
        return self.text


def sure(
    text_of: Callable[[Sequence[int]], str], tokens: Sequence[int], vocabulary: Tokenizer
) -> str:
    """The beginning of a text that no byte behind its tokens changes.

    Where one byte of a run is no character, some decoders show all of the run as U+FFFD.

    Args:
      text_of: the text of token ids.
    """
    text, torn = text_of(tokens), vocabulary.tokens().get(_TORN)
    return text if torn is None else text[: common(text, text_of([*tokens, torn]))]


def settled(text: str, vocabulary: Tokenizer, stop: Sequence[str | int]) -> str:
    """The beginning of an unfinished text that further tokens cannot change, or cut off.

    Args:
      stop: strings before which the text would end.
    """
    text = text[: len(text) - vocabulary.finish.unsettled].rstrip(_UNKNOWN)
    most = max((len(each) for each in stop if isinstance(each, str)), default=0)
    for size in range(min(most - 1, len(text)), 0, -1):
        if any(isinstance(each, str) and each.startswith(text[-size:]) for each in stop):
            return text[:-size]
    return text
