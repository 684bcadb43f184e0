"""Texts of SentencePiece's pieces of bytes, such as <0x41>."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import re
from typing import Any

SPACE = "\u2581"  # SentencePiece's mark of one.
_BYTE, _EACH_BYTE = re.compile("<0x[0-9A-F]{2}>"), "specdec_each_byte"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replaced)


@dataclasses.dataclass(frozen=True)
class BytePieces:
    """Decodes runs of pieces of bytes as SentencePiece does: U+FFFD for each byte of no character.

    ``decoders.ByteFallback`` takes the whole run for it.
    """

    spaces: Any  # The decoder of what is spelt.

    def decode_chain(self, tokens: list[str]) -> list[str]:
        parts = []
        for spelt, run in itertools.groupby(tokens, lambda token: bool(_BYTE.fullmatch(token))):
            if spelt:
                run = [bytes(int(token[3:5], 16) for token in run).decode("utf-8", _EACH_BYTE)]
            parts += run
        # Spaces that the text begins with are no text.
        parts = itertools.dropwhile(lambda part: part == SPACE, parts)
        return [self.spaces.decode(list(parts))]
