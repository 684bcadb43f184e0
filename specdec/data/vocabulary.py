"""SentencePiece vocabularies. Those that are trained here have T5's pad 0, EOS 1 and unknown 2."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import sentencepiece as spm
from jaxtyping import Bool

from specdec.checkpoints.languages import Languages
from specdec.checkpoints.tokenizer_backends import MAX_EXTRA_IDS
from specdec.checkpoints.tokenizer_checks import read_pieces
from specdec.checkpoints.vocabulary_files import VOCABULARY
from specdec.core.files import written
from specdec.rules.spelling import UNKNOWN, Finish, Spelling

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

    def joined(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` before it is finished: ``decode`` gives ``finish`` of it."""
        ...

    @property
    def finish(self) -> Finish:
        """What is done to a whole text."""
        ...

    def spelling(self, size: int) -> Spelling:
        """How the first ``size`` token ids make a text; some may be past the end."""
        ...

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
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
    finish = Finish()

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

    joined = decode

    def spelling(self, size: int) -> Spelling:
        """How the first ``size`` token ids make a text."""

        def spelt(token: int) -> str | None:
            return self._model.id_to_piece(token) if token < len(self) else None

        return spelling_of(size, self.joined, spelt, self.encode("a")[-1], self.finish)

    def pieces(self) -> list[bytes]:
        """What each token adds to a text, in UTF-8; of those without text nothing."""
        return [*self.spelling(len(self)).pieces]


def spelling_of(
    size: int,
    joined: Callable[[list[int]], str],
    spelt: Callable[[int], str | None],
    letter: int,
    finish: Finish,
) -> Spelling:
    """How tokens make a text, as the texts of few tokens tell.

    Args:
      size: how many tokens there are.
      joined: text of token ids, before it is finished.
      spelt: how the file writes a token; None for those past its end.
      letter: a token that other tokens are put behind.
      finish: what is done to a whole text.
    """
    before, pieces, first, byte_of = len(joined([letter])), [], [], {}
    for token in range(size):
        name = spelt(token) or ""
        alone, text = joined([token]), joined([letter, token])[before:]
        if _BYTE.fullmatch(name) and text != name:
            byte_of[token] = int(name[3:5], 16)
            piece = bytes([byte_of[token]])
        elif UNKNOWN in text and set(name) <= _BYTE_OF.keys():
            # A part of a character, in GPT-2's letters for bytes.
            piece = bytes(_BYTE_OF[letter] for letter in name)
        else:
            piece = text.encode("utf-8")
        pieces.append(piece)
        first.append(alone.encode("utf-8") if _is_whole(piece) else piece)
    silent, apart, broken = _silent(joined, pieces, first), np.zeros(size, bool), "replaced"
    tokens = {byte: token for token, byte in byte_of.items()}
    if {*b"A\xc3\xa4"} <= tokens.keys():
        one, begun, ended = (tokens[byte] for byte in b"A\xc3\xa4")
        for token in range(size):
            # Some tokens without text leave the bytes around them together.
            whole = joined([letter, begun, token, ended])[before:] if not pieces[token] else ""
            apart[token] = token not in byte_of and whole != "ä"
        text = joined([letter, one, begun])[before:]
        broken = "dropped" if text == "A" else "replaced" if text[:1] == "A" else "run"
    return Spelling(pieces, pieces if first == pieces else first, silent, apart, broken, finish)


def _silent(
    joined: Callable[[list[int]], str], pieces: Sequence[bytes], first: Sequence[bytes]
) -> Bool[np.ndarray, " v"]:
    """[V] whether the token behind this one is spelt as a first one, if this one is."""
    silent = np.zeros(len(pieces), bool)
    differ = [i for i, (a, b) in enumerate(zip(pieces, first, strict=True)) if a != b]
    if differ:
        other = next((i for i in differ if first[i]), differ[0])
        for token in (i for i, piece in enumerate(first) if not piece):
            silent[token] = joined([token, other]) == first[other].decode("utf-8")
    return silent


def _is_whole(piece: bytes) -> bool:
    """Whether it is characters, and no part of one."""
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _letters_for_bytes() -> dict[str, int]:
    """GPT-2's: printable ones stand for themselves, all others for those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE, _BYTE_OF = re.compile("<0x[0-9A-F]{2}>"), _letters_for_bytes()


def added_text(vocabulary: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """What ``ids`` add to the text of the tokens ``before`` them; it is finished by itself.

    A piece that continues a word has no space in front, and the rest of a character whose first
    bytes were before is that character.
    """
    whole = vocabulary.joined([*before, *ids])
    known = vocabulary.joined(before)
    # Without the bytes of a character that is not whole, more of the text may be the same.
    shorter = (vocabulary.joined(before[:-count]) for count in (1, 2, 3) if count <= len(before))
    same = max(_same(whole, each) for each in (known, *shorter))
    return vocabulary.finish(whole[same:], behind=bool(vocabulary.finish(known)))


def _same(text: str, other: str) -> int:
    """With how many characters in common two texts begin."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


# transformers' ``clean_up_tokenization_spaces``.
CLEAN_UP = (
    *((f" {end}", end) for end in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


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
