"""The small interface over tokenizers of every kind, and what is made of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2  # T5's, and those of all vocabularies that are trained here.
SPACE = "\u2581"  # SentencePiece's mark of one.
_MOST_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages of a translator's vocabulary.

    Attributes:
      ids: token ids by code.
      starts_outputs: whether an output's language is what the decoder starts from (mBART), instead
        of the first token that it is made to generate.
      source, target: the codes that tokenizer_config.json tells; None where it tells none.
      rows: of the model's embedding, beyond which a language cannot be used; None for any number.
    """

    ids: Mapping[str, int]
    starts_outputs: bool = False
    source: str | None = None
    target: str | None = None
    rows: int | None = None

    def code(self, option: str, given: str | None) -> str:
        """The language of texts ("source_language") or of outputs ("target_language").

        Raises:
          ValueError: there is no such language, it is beyond the embedding, or neither ``given``
            nor the file tells one. (That a file's language of texts is, their tokens show.)
        """
        source = option == "source_language"
        code = given if given is not None else self.source if source else self.target
        if code is not None and code in self.ids:
            beyond = self.rows is not None and self.ids[code] >= self.rows
            if beyond and not (source and given is None):
                raise ValueError(
                    f"{option} = {code!r} is token {self.ids[code]}, but the model's embedding has "
                    f"only {self.rows} rows: the model was made without it. Choose another one."
                )
            return code
        shown = ", ".join([*sorted(self.ids)[:_MOST_SHOWN], "..."][: len(self.ids)])
        there = f"This vocabulary has {len(self.ids)} languages: {shown}."
        if code is None:
            raise ValueError(
                f"{option} is missing: give the code of a language, or set "
                f"{'src_lang' if source else 'tgt_lang'} in tokenizer_config.json. {there}"
            )
        raise ValueError(f"{option} = {code!r} is no language of this vocabulary. {there}")


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

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Token ids before a text: of an encoder's, and of one that the output continues."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids behind an encoder's text, such as EOS."""
        ...

    @property
    def languages(self) -> Languages | None:
        """Those of a translator's texts and outputs; None where there are none."""
        ...

    def __len__(self) -> int:
        """Number of tokens. A model's embedding may have more rows: they are padding."""
        ...

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it.

        That is between ``start_ids`` and ``end_ids``.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``. Special tokens have none, and neither have ids past the end."""
        ...

    def tokens(self) -> dict[str, int]:
        """The id of each token, by how the file writes it."""
        ...

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        ...

    @property
    def unsettled(self) -> int:
        """Characters at the end of a text that further tokens may change."""
        ...


def added_text(vocabulary: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """What ``ids`` add to the text of the tokens ``before`` them.

    A piece that continues a word has no space in front, and the rest of a character whose first
    bytes were before is that character.
    """
    known, whole = vocabulary.decode(before), vocabulary.decode([*before, *ids])
    pairs = enumerate(zip(known, whole, strict=False))
    return whole[next((i for i, (a, b) in pairs if a != b), min(len(known), len(whole))) :]


def pieces_of(
    vocabulary: Tokenizer, tokens: Mapping[str, int],
    decoded: Callable[[list[list[int]]], list[str]],
) -> list[bytes]:  # fmt: skip
    """What each token adds to a text, in UTF-8.

    Args:
      tokens: ids, by how the file writes a token.
      decoded: the texts of many token ids, as ``vocabulary.decode`` has each.
    """
    size, spelling = len(vocabulary), {i: token for token, i in tokens.items()}
    # A token that others are put behind.
    letters = (*vocabulary.encode("a")[-1:], *range(size))
    letter = next((i for i in letters if vocabulary.decode([i]).strip("\ufffd ")), 0)
    begin, found = len(vocabulary.decode([letter])), []
    for token, text in enumerate(decoded([[letter, token] for token in range(size)])):
        text, spelt = text[begin:], spelling.get(token, "")
        if "\ufffd" not in text:
            found.append(text.encode("utf-8"))
        elif _BYTE.fullmatch(spelt):
            found.append(bytes([int(spelt[3:5], 16)]))
        elif set(spelt) <= _BYTE_OF.keys():  # A part of a character, in GPT-2's letters for bytes.
            found.append(bytes(_BYTE_OF[letter] for letter in spelt))
        else:
            found.append(text.encode("utf-8"))
    return found


def _letters_for_bytes() -> dict[str, int]:
    """GPT-2's: printable ones stand for themselves, all others for those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE, _BYTE_OF = re.compile("<0x[0-9A-F]{2}>"), _letters_for_bytes()


def check_languages(tokenizer: Tokenizer | None, **given: str | None) -> None:
    """Raises ValueError for languages that are given to a vocabulary without any."""
    if tokenizer is None or tokenizer.languages is None:
        for option, code in given.items():
            if code is not None:
                raise ValueError(
                    f"{option} = {code!r}, but the vocabulary has no languages: leave it out. "
                    "Where a model is told the language in the text, as T5 is by a sentence and "
                    "Marian by >>fra<< before it, put it there."
                )


def check_rows(path: Path, size: int, rows: int | None) -> None:
    """Raises ValueError for a vocabulary that is larger than the model's embedding."""
    if rows is not None and size > rows:
        raise ValueError(
            f"{path} has {size} pieces, but the model's embedding only {rows} rows: it is another "
            "model's vocabulary. Put the model's own beside its weights."
        )
