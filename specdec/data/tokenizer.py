"""What a tokenizer is to everything between a text and a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def path(self) -> Path:
        """The file it was read from."""
        ...

    @property
    def eos_id(self) -> int:
        """Ends a text."""
        ...

    def __len__(self) -> int:
        """Number of tokens. A model's embedding may have more rows: they are padding."""
        ...

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``, without EOS unless asked for."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS."""
        ...
