"""SentencePiece vocabularies. Those that are trained here have T5's pad 0, EOS 1 and unknown 2."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece as spm

from specdec.checkpoints.languages import Languages
from specdec.checkpoints.tokenizer_backends import MAX_EXTRA_IDS
from specdec.checkpoints.tokenizer_checks import read_pieces
from specdec.checkpoints.vocabulary_files import VOCABULARY
from specdec.core.files import written

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
_DEFINED = 4  # Type of a piece that is one token wherever its text is.


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
        """Text of ``ids``. Pads, EOS and what stands around texts have none."""
        ...

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        ...

    @property
    def unsettled(self) -> int:
        """Characters at the end of a text that further tokens may change."""
        ...


class Vocabulary:
    """A :class:`Tokenizer` that reads a SentencePiece model file as seqio, T5X's library, does.

    T5's sentinels ``<extra_id_0>`` ... are pieces that the maker defined, behind the file's own.
    ``</s>`` and the like in a text are characters like others. All ids are the file's own: EOS, pad
    and unknown are 1, 0 and 2 in T5's.

    Args:
      path: the model file, or a directory that holds ``spiece.model``.
      rows: of the model's embedding; None for those of the pieces. Up to 100 rows beyond these are
        sentinels, counted from their end, unless sentinels are among the pieces, as mT5's are.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not a SentencePiece model, it has no EOS, or it has more pieces than
        there are rows.
    """

    start_ids, languages = (), None
    unsettled = 0

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        path = Path(path)
        if path.is_dir():
            path = path / VOCABULARY
        if not path.is_file():
            raise FileNotFoundError(f"No vocabulary at {path}.")
        proto = read_pieces(path)
        pieces = len(proto.pieces)
        check_rows(path, pieces, rows)
        among = any("<extra_id_" in piece.piece for piece in proto.pieces)
        beyond = 0 if rows is None or among else min(MAX_EXTRA_IDS, rows - pieces)
        for i in reversed(range(beyond)):
            proto.pieces.add(piece=f"\u2581<extra_id_{i}>", score=0.0, type=_DEFINED)
        self._model = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        self.path = path
        self.eos_id: int = self._model.eos_id()
        if self.eos_id < 0:
            raise ValueError(f"{path} has no piece that ends a text (</s>), which models need.")
        self.end_ids = (self.eos_id,)

    def __len__(self) -> int:
        return self._model.get_piece_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` EOS is the last."""
        ids = self._model.encode(text)
        return [*ids, self.eos_id] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; pads and EOS have none, and ids past the end are unknown."""
        unknown = self._model.unk_id()
        return self._model.decode([i if i < len(self) else unknown for i in map(int, ids)])

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        spelling = self._model.id_to_piece
        return pieces_of(len(self), self.decode, spelling, self.encode("a")[-1])


def pieces_of(
    size: int,
    decode: Callable[[list[int]], str],
    spelling: Callable[[int], str | None],
    letter: int,
) -> list[bytes]:
    """What each token adds to a text, in UTF-8.

    Args:
      size: how many tokens there are.
      decode: text of token ids.
      spelling: how the file writes a token.
      letter: a token that other tokens are put behind.
    """
    before, found = decode([letter]), []
    for token in range(size):
        text = decode([letter, token])[len(before) :]
        spelt = spelling(token) or ""
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


def added_text(vocabulary: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """What ``ids`` add to the text of the tokens ``before`` them.

    A piece that continues a word has no space in front, and the rest of a character whose first
    bytes were before is that character.
    """
    known, whole = vocabulary.decode(before), vocabulary.decode([*before, *ids])
    pairs = enumerate(zip(known, whole, strict=False))
    return whole[next((i for i, (a, b) in pairs if a != b), min(len(known), len(whole))) :]


UNSETTLED = 8  # What :func:`cleaned_up` may still change at the end of a text.


def cleaned_up(text: str) -> str:
    """Text without the spaces that transformers' ``clean_up_tokenization_spaces`` takes away."""
    for end in (".", "?", "!", ","):
        text = text.replace(f" {end}", end)
    text = text.replace(" ' ", "'")
    for end in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {end}", end)
    return text


def check_rows(path: Path, size: int, rows: int | None) -> None:
    """Raises ValueError for a vocabulary that is larger than the model's embedding."""
    if rows is not None and size > rows:
        raise ValueError(
            f"{path} has {size} pieces, but the model's embedding only {rows} rows: it is another "
            "model's vocabulary. Put the model's own beside its weights."
        )


def train_vocabulary(lines: Iterable[str], size: int, path: str | os.PathLike) -> Vocabulary:
    """Trains a unigram vocabulary of exactly ``size`` pieces and writes it to ``path``.

    Special pieces and the 256 byte pieces count towards ``size``. Characters too rare for a piece
    of their own are spelt in bytes, so no text is unknown. One thread: the same lines give the
    same file.

    Raises:
      ValueError: SentencePiece cannot make ``size`` pieces out of ``lines``.
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=size, model_type="unigram", byte_fallback=True,
            pad_id=PAD_ID, eos_id=EOS_ID, unk_id=UNK_ID, bos_id=-1,
            num_threads=1, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        # "...cc(12) [condition] Vocabulary size too high (900). Please set it to a value <= 313."
        reason = str(error).rpartition("]")[2].strip()
        raise ValueError(f"size = {size} pieces cannot be made of this text: {reason}") from None
    with written(Path(path)) as partial:
        partial.write_bytes(model.getvalue())
    return Vocabulary(path)
