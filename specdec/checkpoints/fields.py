"""The fields of config.json and generation_config.json, each checked when it is read."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from specdec.arguments import MOST_SIZE
from specdec.checkpoints.parameters import CheckpointError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Fields:
    """What one file has; ``source`` is its path, for messages.

    Every method raises CheckpointError, in a line with file and field, for a value of another type
    or out of range.
    """

    raw: Mapping[str, Any]
    source: str

    def has(self, name: str) -> bool:
        """Whether there is a value, other than null."""
        return self.raw.get(name) is not None

    def whole(
        self, name: str, least: int = 1, most: int = MOST_SIZE, default: int | None = None
    ) -> int:
        """A whole number in least..most; without a default it must be there."""
        if name not in self.raw:
            if default is None:
                raise CheckpointError(f"{self.source}: {name} is missing; add it.")
            return default
        value = self.raw[name]
        if not _is_whole(value) or not least <= value <= most:
            self._refuse(name, f"a whole number in {least}..{most}")
        return value

    def fraction(self, name: str, default: float) -> float:
        """A number in [0, 1)."""
        value = self.raw.get(name, default)
        if not (_is_whole(value) or isinstance(value, float)) or not 0 <= value < 1:
            self._refuse(name, "a number in [0, 1)")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0; without a default it must be there."""
        if name not in self.raw:
            if default is None:
                raise CheckpointError(f"{self.source}: {name} is missing; add it.")
            return default
        value = self.raw[name]
        if not (_is_whole(value) or isinstance(value, float)) or not 0 < value < math.inf:
            self._refuse(name, "a positive number")
        return float(value)

    def inside(self, name: str) -> Fields:
        """The fields of an object in it."""
        value = self.raw.get(name)
        if not isinstance(value, dict):
            if name not in self.raw:
                raise CheckpointError(f"{self.source}: {name} is missing; add it.")
            self._refuse(name, "an object")
        return Fields(value, f"{self.source}: {name}")

    def truth(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.raw.get(name, default)
        if not isinstance(value, bool):
            self._refuse(name, "true or false")
        return value

    def choice(self, name: str, known: Mapping[str, T], default: T) -> T:
        """What a name means."""
        if name not in self.raw:
            return default
        value = self.raw[name]
        if not isinstance(value, str) or value not in known:
            raise CheckpointError(
                f"{self.source}: {name} {reprlib.repr(value)} is not supported; it must be one of "
                f"{', '.join(known)}."
            )
        return known[value]

    def tokens(self, name: str, vocab_size: int, several: bool = False) -> list[int]:
        """Token ids: one, or with ``several`` a list of them; none for null or nothing."""
        value = self.raw.get(name)
        if value is None:
            return []
        values = value if isinstance(value, list) else [value]
        if not values or not all(map(_is_whole, values)) or (len(values) > 1 and not several):
            self._refuse(name, "one token id, or a list of them" if several else "one token id")
        if not all(0 <= each < vocab_size for each in values):
            self._refuse(name, f"in 0..{vocab_size - 1}")
        return values

    def _refuse(self, name: str, asked: str) -> NoReturn:
        found = reprlib.repr(self.raw[name])  # It may be nested deeply.
        raise CheckpointError(f"{self.source}: {name} must be {asked}, got {found}.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class TokenFields:
    """The special tokens of a checkpoint, as transformers' ``generate`` finds them.

    Attributes:
      config: config.json.
      generation: generation_config.json, None where there is none.
      vocab_size: V; tokens are in 0..V-1.
    """

    config: Fields
    generation: Fields | None
    vocab_size: int

    def ends(self, default: int | None) -> list[int]:
        """The EOS ids; none where outputs end only at their limit.

        generation_config.json alone decides where there is one: null in it, or no such field, means
        none, whatever config.json has. Only a config.json that is alone and does not have the field
        means the ``default``.
        """
        if self.generation is None and "eos_token_id" not in self.config.raw:
            return [] if default is None else [default]
        fields = self.generation or self.config
        return fields.tokens("eos_token_id", self.vocab_size, several=True)

    def first(self, *names: str) -> int | None:
        """The first token that is given, by any of these names: in generation_config.json first."""
        for fields in filter(None, (self.generation, self.config)):
            for name in names:
                if found := fields.tokens(name, self.vocab_size):
                    return found[0]
        return None


def format_ends(eos_id: int | None, more_eos_ids: tuple[int, ...]) -> int | list[int] | None:
    """What eos_token_id is in both files; null where outputs end only at their limit."""
    return eos_id if eos_id is None or not more_eos_ids else [eos_id, *more_eos_ids]
