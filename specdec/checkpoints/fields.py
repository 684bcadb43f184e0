"""The fields of config.json and generation_config.json; errors name the file and the field.

Types and ranges are checked where a network's config is made, whose fields have other names.
"""

from __future__ import annotations

import contextlib
import json
import re
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from specdec.checkpoints.parameters import CheckpointError
from specdec.core.arguments import MOST_SIZE, whole

T = TypeVar("T")
_SEAL = "specdec_checksum"
_MOST_WORDS = 300  # Of a message, which may show a value.


class Fields(dict[str, Any]):
    """Fields of one file, or of a part of it; ``source`` is its path, for messages.

    A field that is not there is a CheckpointError.
    """

    def __init__(self, raw: Mapping[str, Any], source: str):
        super().__init__(raw)
        self.source = source

    def __missing__(self, name: str) -> NoReturn:
        raise CheckpointError(f"{self.source}: {name} is missing; add it.")

    def size(self, name: str) -> int:
        """A number of things; ValueError for anything else."""
        return whole(name, self[name], 1, MOST_SIZE)

    def inside(self, name: str) -> Fields:
        """The fields of an object in it."""
        if not isinstance(self[name], dict):
            self.refuse(name, "an object")
        return Fields(self[name], f"{self.source}: {name}")

    def choice(self, name: str, known: Mapping[str, T]) -> T:
        """Meaning of a field's value, which must be a name in ``known``."""
        value = self[name]
        if not isinstance(value, str) or value not in known:
            raise CheckpointError(
                f"{self.source}: {name} {reprlib.repr(value)} is not supported; it must be one of "
                f"{', '.join(known)}."
            )
        return known[value]

    def check(self, wanted: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a variant that is not supported; null is as nothing."""
        for name, value in wanted.items():
            if self.get(name) not in (None, value):
                self.refuse(name, str(value))

    def tokens(self, name: str, vocab_size: int, several: bool = False) -> list[int]:
        """Token ids: one, or with ``several`` a list of them; none for null, nothing or no pad."""
        value = self.get(name)
        if value is None or (name == "pad_token_id" and value == -1):
            return []
        values = value if isinstance(value, list) else [value]
        whole = all(isinstance(each, int) and not isinstance(each, bool) for each in values)
        if not values or not whole or (len(values) > 1 and not several):
            self.refuse(name, "one token id, or a list of them" if several else "one token id")
        if not all(0 <= each < vocab_size for each in values):
            self.refuse(name, f"in 0..{vocab_size - 1}")
        return values

    def refuse(self, name: str, asked: str) -> NoReturn:
        """Raises CheckpointError for a value."""
        found = reprlib.repr(self[name])  # It may be nested deeply.
        raise CheckpointError(f"{self.source}: {name} must be {asked}, got {found}.")


@contextlib.contextmanager
def naming_fields(source: str, names: Mapping[str, str]) -> Iterator[None]:
    """Turns errors of a network's config into a CheckpointError that names the file's field.

    Args:
      names: of fields: for a config's the file's, if they differ.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        ours = re.compile(r"\b(?:TransformerConfig|[A-Z][a-z]+)\.(\w+)")
        reason = ours.sub(lambda found: names.get(found[1], found[1]), str(error))
        raise CheckpointError(f"{source}: {reason[:_MOST_WORDS]}") from None


def special_tokens(
    config: Fields, generation: Fields | None, vocab_size: int, *, encodes: bool = False
) -> dict[str, Any]:
    """The special tokens of a checkpoint, as transformers' ``generate`` finds them.

    generation_config.json alone decides on the EOS where there is one: null in it, or no such
    field, means that outputs end only at their limit, whatever config.json has.

    Args:
      config: with the defaults of what config.json leaves out.
      generation: generation_config.json, None where there is none.
      vocab_size: V; tokens are in 0..V-1.
      encodes: whether it is of a T5 or a BART.

    Returns:
      fields of a network's config.
    """
    ends = (config if generation is None else generation).tokens("eos_token_id", vocab_size, True)

    def first(*names: str) -> int | None:
        for fields in (config,) if generation is None else (generation, config):
            for name in names:
                if found := fields.tokens(name, vocab_size):
                    return found[0]
        return None

    pad, start = first("pad_token_id"), first("decoder_start_token_id", "bos_token_id")
    spare = ends[0] if ends and not encodes else 0
    pad, other = (spare, spare) if pad is None else (pad, pad if encodes else spare)
    return {
        "pad_id": pad, "start_id": other if start is None else start,
        "eos_id": ends[0] if ends else None, "more_eos_ids": tuple(ends[1:]),
    }  # fmt: skip


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a config.json of specdec's, with a checksum: it is read without transformers."""
    text = json.dumps(fields, sort_keys=True)
    return {**fields, _SEAL: f"{zlib.crc32(text.encode()):08x}"}


def is_sealed(raw: Mapping[str, Any]) -> bool:
    """Whether specdec wrote these fields, and nobody changed them: each is there, and valid."""
    return _SEAL in raw and raw == sealed({name: raw[name] for name in raw if name != _SEAL})


def format_tokens(config: Any) -> dict[str, Any]:
    """Special tokens of a config, as both files write them; null for no EOS."""
    ends = [config.eos_id, *config.more_eos_ids]
    start = "bos_token_id" if config.reads_prefix else "decoder_start_token_id"
    return {
        "pad_token_id": config.pad_id, "eos_token_id": ends if len(ends) > 1 else config.eos_id,
        start: config.start_id,
    }  # fmt: skip
