"""SentencePiece vocabularies with T5's conventions: pad 0, EOS 1, unknown 2, no BOS."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import sentencepiece as spm

from specdec.core.files import written

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
FILE_NAME = "spiece.model"  # The name Hugging Face gives T5's vocabulary.


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

    def __len__(self) -> int:
        """Number of tokens. A model's embedding may have more rows: they are padding."""
        ...

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``, without EOS unless asked for."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS."""
        ...


class Vocabulary:
    """A :class:`Tokenizer` that reads a SentencePiece model file.

    Args:
      path: the model file, or a directory that holds ``spiece.model``.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not a SentencePiece model, or its pad, EOS and unknown ids are not
        T5's 0, 1 and 2.
    """

    eos_id = EOS_ID

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        if not path.is_file():
            raise FileNotFoundError(f"No vocabulary at {path}.")
        try:
            self._model = spm.SentencePieceProcessor(model_file=str(path))
        except RuntimeError as error:
            raise ValueError(f"{path} is not a SentencePiece model.") from error
        ids = (self._model.pad_id(), self._model.eos_id(), self._model.unk_id())
        if ids != (PAD_ID, EOS_ID, UNK_ID):
            raise ValueError(
                f"{path} has (pad, eos, unk) = {ids}; T5 wants {(PAD_ID, EOS_ID, UNK_ID)}."
            )
        self.path = path

    def __len__(self) -> int:
        return self._model.get_piece_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        ids = self._model.encode(text)
        return [*ids, EOS_ID] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` up to the first EOS; pads are skipped, ids past the end are unknown."""
        text = itertools.takewhile(lambda token: token != EOS_ID, map(int, ids))
        kept = [token if token < len(self) else UNK_ID for token in text if token != PAD_ID]
        return self._model.decode(kept)


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
        raise ValueError(f"SentencePiece cannot make {size} pieces: {error}") from error
    with written(Path(path)) as partial:
        partial.write_bytes(model.getvalue())
    return Vocabulary(path)
