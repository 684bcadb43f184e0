"""SentencePiece vocabularies. Those that are trained here have T5's pad 0, EOS 1 and unknown 2."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec.core.files import written

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
FILE_NAME = "spiece.model"  # The name Hugging Face gives T5's vocabulary.
MAX_EXTRA_IDS = 100  # T5's sentinels beyond the pieces.


_EXTRA_ID = "<extra_id_{}>"
# Types of pieces that are one token wherever they stand: unknown, control, defined by the maker.
_WHOLE = (2, 3, 4)


class Tokenizer(Protocol):
    """Text to token ids and back: what is asked of it between a text and a model."""

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
        """What stands before a text that a decoder-only model continues."""
        ...

    def __len__(self) -> int:
        """Number of tokens. A model's embedding may have more rows: they are padding."""
        ...

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` as an encoder reads it, EOS last."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS."""
        ...


class Vocabulary:
    """A :class:`Tokenizer` that reads a SentencePiece model file.

    In a text, ``</s>``, ``<pad>``, ``<unk>``, what the file's maker defined, such as ``<2de>``, and
    T5's sentinels ``<extra_id_0>`` ... are one token each. What stands between them is cut into
    pieces on its own, as transformers does. All ids are the file's own: EOS, pad and unknown are 1,
    0 and 2 in T5's, and MADLAD-400's has EOS 2, unknown 0 and no pad.

    Args:
      path: the model file, or a directory that holds ``spiece.model``.
      rows: of the model's embedding; None for those of the pieces. Unless sentinels are among the
        pieces, as mT5's and UMT5's are, up to 100 rows beyond these are sentinels, counted from
        their end: fewer if tokenizer_config.json beside the file has ``extra_ids``.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not a SentencePiece model, it has no EOS, or it has more pieces than
        there are rows.
    """

    start_ids = ()

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        if not path.is_file():
            raise FileNotFoundError(f"No vocabulary at {path}.")
        try:
            self._model = spm.SentencePieceProcessor(model_file=str(path))
        except RuntimeError as error:
            raise ValueError(f"{path} is not a SentencePiece model.") from error
        self.eos_id: int = self._model.eos_id()
        self._pad_id: int = self._model.pad_id()  # -1 for none.
        self._unk_id: int = self._model.unk_id()
        if self.eos_id < 0:
            raise ValueError(f"{path} has no piece that ends a text (</s>), which models need.")
        self.path, pieces = path, self._model.get_piece_size()
        check_rows(path, pieces, rows)
        messages: Any = proto
        listed = messages.ModelProto.FromString(self._model.serialized_model_proto()).pieces
        self._special = {each.piece: i for i, each in enumerate(listed) if each.type in _WHOLE}
        among = dict(self._sentinel_pieces())
        self._special |= among
        beyond = 0 if rows is None or among else min(_extra_ids(path), rows - pieces)
        self._size = pieces + beyond
        for i in range(beyond):
            self._special[_EXTRA_ID.format(i)] = self._size - 1 - i
        self._texts = {token: text for text, token in self._special.items()}
        self._pattern = re.compile(f"({'|'.join(map(re.escape, self._special))})")

    def __len__(self) -> int:
        return self._size

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        ids = []
        for part in self._pattern.split(text):
            special = self._special.get(part)
            ids += self._model.encode(part) if special is None else [special]
        return [*ids, self.eos_id] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown."""
        texts, pieces = [], []
        no_text = (self._pad_id, self._model.bos_id(), self._unk_id)
        for token in map(int, ids):
            if token == self.eos_id:
                break
            if token in self._texts and token not in no_text:
                texts += [self._model.decode(pieces), self._texts[token]]
                pieces = []
            elif token not in no_text[:2]:
                pieces.append(token if token < self._model.get_piece_size() else self._unk_id)
        return " ".join(filter(None, [*texts, self._model.decode(pieces)]))

    def _sentinel_pieces(self) -> Iterator[tuple[str, int]]:
        """Sentinels that are pieces, in order."""
        for i in itertools.count():
            text = _EXTRA_ID.format(i)
            ids = [self._model.piece_to_id(piece) for piece in (text, "\u2581" + text)]
            found = [token for token in ids if token != self._unk_id]
            if not found:
                return
            yield text, found[-1]


def check_rows(path: Path, size: int, rows: int | None) -> None:
    """Raises ValueError for a vocabulary that is larger than the model's embedding."""
    if rows is not None and size > rows:
        raise ValueError(
            f"{path} has {size} pieces, but the model's embedding only {rows} rows: it is another "
            "model's vocabulary. Put the model's own beside its weights."
        )


def _extra_ids(path: Path) -> int:
    """The number of sentinels that a vocabulary is used with, at most."""
    try:
        config = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8"))
        return int(config["extra_ids"])
    except (OSError, ValueError, KeyError, TypeError):
        return MAX_EXTRA_IDS


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
