"""SentencePiece vocabularies. Those that are trained here have T5's pad 0, EOS 1 and unknown 2."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece as spm

from specdec.core.checkpoint_files import CheckpointError, check_whole
from specdec.core.files import written
from specdec.rules.spelling import Finish, Spelling
from specdec.text.base import EOS_ID, PAD_ID, SPACE, UNK_ID, check_rows
from specdec.text.files import VOCABULARY
from specdec.text.pieces import spelling_of

MAX_EXTRA_IDS = 100  # T5's sentinels, <extra_id_0> ..., where no file gives their number.
_DEFINED = 4  # Type of a piece that is one token wherever its text is.


def read_pieces(path: Path) -> Any:
    """A SentencePiece model's message.

    Raises:
      CheckpointError: the file is none, or is damaged.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    check_whole(path)
    content, messages = path.read_bytes(), sentencepiece_model_pb2
    try:
        spm.SentencePieceProcessor(model_proto=content)
        proto: Any = messages.ModelProto.FromString(content)  # pyright: ignore
        whole = proto.pieces and all(math.isfinite(piece.score) for piece in proto.pieces)
    except (RuntimeError, DecodeError):
        whole = False
    if not whole:
        raise CheckpointError(
            f"{path} is not a SentencePiece model that can be read; copy or download it again."
        )
    return proto


class Vocabulary:
    """A tokenizer that reads a SentencePiece model file as seqio, T5X's own library, does.

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
        return self._model.decode(self._known(ids))

    joined = decode

    def _known(self, ids: Iterable[int]) -> list[int]:
        unknown = self._model.unk_id()
        return [i if i < len(self) else unknown for i in map(int, ids)]

    def tokens(self) -> dict[str, int]:
        """The id of each piece; a sentinel is called as transformers calls it."""
        names = map(self._model.id_to_piece, range(len(self)))
        return {
            name.removeprefix(SPACE) if "<extra_id_" in name else name: i
            for i, name in enumerate(names)
        }

    def spelling(self, size: int) -> Spelling:
        """Spelling of the first ``size`` token ids."""

        def joined(rows: list[list[int]]) -> list[str]:
            return self._model.decode([*map(self._known, rows)])

        return spelling_of(size, self.tokens(), joined, self.finish, self.encode("a")[-1])


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
