"""Spelling of tokens: how a decoder makes texts of them, as tables can follow it.

A text is made in two steps. What the tokens spell is joined: a piece for each token, where some
pieces are only parts of a character. Then the whole text is finished: stripped, and cleaned up.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Bool

Broken = Literal["dropped", "replaced", "run"]
UNKNOWN = "\ufffd"  # Stands for bytes that are no character.


@dataclasses.dataclass(frozen=True)
class Finish:
    """Changes to a whole text, after its tokens are joined.

    An output's text is finished by itself: behind a prefix or a prompt nothing of these changes,
    and the whitespace that an output begins with there is text.

    Attributes:
      strips: whitespace at both ends is taken away, as by ``str.strip``.
      replaces: strings and what they are replaced by, as by ``str.replace``, one after the other.
    """

    strips: bool = False
    replaces: tuple[tuple[str, str], ...] = ()

    def __call__(self, text: str, *, behind: bool = False) -> str:
        """The finished text.

        Args:
          behind: whether there is text in front of it.
        """
        if self.strips:
            text = text.rstrip() if behind else text.strip()
        for old, new in self.replaces:
            text = text.replace(old, new)
        return text

    @property
    def unsettled(self) -> int:
        """Characters at the end of a text that further tokens may change."""
        return 2 * max((len(old) for old, _ in self.replaces), default=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Spelling:
    """Text of each token, and how texts are joined.

    Attributes:
      pieces: [V] what each token adds behind others, in UTF-8; it may be a part of a character.
      first: [V] what each token adds where nothing but ``silent`` tokens is before it.
      silent: [V] whether the token behind this one is still spelt as a first one, if this one is.
      apart: [V] whether a token is text by itself: bytes before and behind it make no character
        together.
      broken: what becomes of bytes that are no character: they are left out, "dropped"; they are
        "replaced" by U+FFFD; or all bytes of a "run" are, from one token of ``apart`` to the next,
        if some are no character.
      finish: changes to the joined text.
    """

    pieces: Sequence[bytes]
    first: Sequence[bytes]
    silent: Bool[np.ndarray, " v"]
    apart: Bool[np.ndarray, " v"]
    broken: Broken = "replaced"
    finish: Finish = Finish()

    @classmethod
    def of_bytes(cls, pieces: Sequence[bytes], broken: Broken = "replaced", **more) -> Spelling:
        """Spelling of tokens whose bytes are joined wherever they are."""
        none = np.zeros(len(pieces), bool)
        return cls(pieces, pieces, none, none, broken, **more)

    def joined(self, ids: Iterable[int]) -> str:
        """Text of tokens, before it is finished; of U+FFFD there may be fewer than are shown."""
        text, run, first = "", b"", True
        for token in ids:
            piece = (self.first if first else self.pieces)[token]
            first = first and bool(self.silent[token])
            if self.apart[token]:
                text, run = text + self._decoded(run) + piece.decode("utf-8"), b""
            else:
                run += piece
        return text + self._decoded(run)

    def _decoded(self, run: bytes) -> str:
        if self.broken == "run":
            try:
                return run.decode("utf-8")
            except UnicodeDecodeError:
                return UNKNOWN
        return run.decode("utf-8", "ignore" if self.broken == "dropped" else "replace")


class Words(Protocol):
    """A vocabulary, as rules need it: text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without EOS."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids."""
        ...

    def spelling(self, size: int) -> Spelling:
        """Spelling of the first ``size`` token ids; some may be past the vocabulary's end."""
        ...


_TRIED = 64  # Random rows of tokens.


def check_followed(name: str, words: Words, spelling: Spelling) -> None:
    """Compares the texts of some random rows of tokens with their spelling.

    Raises:
      ValueError: for a decoder whose texts no table follows.
    """
    generator, size = np.random.default_rng(0), len(spelling.pieces)
    pairs = zip(spelling.pieces, spelling.first, strict=True)
    odd = np.array([not piece or piece != first for piece, first in pairs], bool) | spelling.silent
    odd |= spelling.apart.any() & ~spelling.apart
    odd = np.flatnonzero(odd) if odd.any() else np.arange(size)
    for _ in range(_TRIED):
        ids = np.where(
            generator.random(6) < 0.5, generator.choice(odd, 6), generator.integers(size, size=6)
        ).tolist()
        shown, spelt = words.decode(ids), spelling.finish(spelling.joined(ids))
        if _BROKEN.sub(UNKNOWN, shown) != _BROKEN.sub(UNKNOWN, spelt):
            raise ValueError(
                f"{name} is about text, but the text of this vocabulary's tokens depends on more "
                f"than a piece for each: tokens {ids} show {shown!r}, and their pieces are "
                f"{spelt!r}. Give token ids."
            )


_BROKEN = re.compile(f"{UNKNOWN}+")
