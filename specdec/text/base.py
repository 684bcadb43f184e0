"""The small interface over tokenizers of every kind, and what is made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from specdec.rules.spelling import Finish, Spelling

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
      source, target: the codes in tokenizer_config.json; None where it has none.
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
            nor the file names one. (That a file's language of texts is, their tokens show.)
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
        """Languages of a translator's texts and outputs; None where there are none."""
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

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished: ``decode`` gives ``finish`` of it."""
        ...

    @property
    def finish(self) -> Finish:
        """Changes to a whole text, after its tokens are joined."""
        ...

    def spelling(self, size: int) -> Spelling:
        """Spelling of the first ``size`` token ids; some may be past the end."""
        ...


def added_text(vocabulary: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Text that ``ids`` add to that of the tokens ``before`` them; it is finished by itself.

    A piece that continues a word has no space in front, and the rest of a character whose first
    bytes were before is that character.
    """
    whole = vocabulary.joined([*before, *ids])
    known = vocabulary.joined(before)
    # Without the bytes of a character that is not whole, more of the text may be the same.
    shorter = (vocabulary.joined(before[:-count]) for count in (1, 2, 3) if count <= len(before))
    same = max(common(whole, each) for each in (known, *shorter))
    return vocabulary.finish(whole[same:], behind=bool(vocabulary.finish(known)))


def common(text: str, other: str) -> int:
    """Number of characters in common that two texts begin with."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


# transformers' ``clean_up_tokenization_spaces``.
CLEAN_UP = (
    *((f" {end}", end) for end in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def check_languages(tokenizer: Tokenizer | None, **given: str | None) -> None:
    """Raises ValueError for languages that are given to a vocabulary without any."""
    if tokenizer is None or tokenizer.languages is None:
        for option, code in given.items():
            if code is not None:
                raise ValueError(
                    f"{option} = {code!r}, but the vocabulary has no languages: leave it out. "
                    "Where a model reads the language in the text, as T5 does in a sentence "
                    "and Marian in >>fra<< before it, put it there."
                )


def check_rows(path: Path, size: int, rows: int | None) -> None:
    """Raises ValueError for a vocabulary that is larger than the model's embedding."""
    if rows is not None and size > rows:
        raise ValueError(
            f"{path} has {size} pieces, but the model's embedding only {rows} rows: it is another "
            "model's vocabulary. Put the model's own beside its weights."
        )
