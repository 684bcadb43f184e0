"""BERT's WordPiece vocabulary, trained from text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from specdec.core.checkpoint_files import CheckpointError, check_whole
from specdec.core.files import written
from specdec.rules.spelling import Finish, Spelling
from specdec.text.base import check_rows
from specdec.text.pieces import spelling_of

# BERT's five, in the order that gives pad and EOS the ids that training batches have.
SPECIAL = ("[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]")
START_ID = SPECIAL.index("[CLS]")


class WordPieces:
    """A :class:`~specdec.text.base.Tokenizer` of what :func:`train_word_pieces` wrote.

    Args:
      path: tokenizer.json.
      rows: of the model's embedding; None for any number.

    Raises:
      ValueError: the file cannot be read, or has more pieces than there are rows.
    """

    languages, finish = None, Finish()

    def __init__(self, path: str | os.PathLike, rows: int | None = None):
        self.path = Path(path)
        check_whole(self.path)
        try:
            self._model = Tokenizer.from_file(str(path))
        except Exception as error:  # The library has no other.
            raise CheckpointError(
                f"{path} cannot be read as a tokenizer.json ({error}); copy it or train it again."
            ) from None
        self.eos_id = SPECIAL.index("[SEP]")
        self.start_ids, self.end_ids = tuple(self._model.encode("").ids), (self.eos_id,)
        check_rows(self.path, len(self), rows)

    def __len__(self) -> int:
        return self._model.get_vocab_size()

    def encode(self, text: str, *, add_eos: bool = False) -> list[int]:
        """Token ids of ``text``; with ``add_eos`` between ``[CLS]`` and ``[SEP]``."""
        ids = self._model.encode(text, add_special_tokens=False).ids
        return [*self.start_ids, *ids, *self.end_ids] if add_eos else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; special tokens and ids past the end have none."""
        return self._model.decode([*map(int, ids)])

    joined = decode

    def tokens(self) -> dict[str, int]:
        """The id of each piece."""
        return self._model.get_vocab()

    def pieces(self) -> list[bytes]:
        """Bytes that each token adds to a text, in UTF-8; none for tokens without text."""
        return [*self.spelling(len(self)).pieces]

    def spelling(self, size: int) -> Spelling:
        """Spelling of the first ``size`` token ids."""
        return spelling_of(size, self.tokens(), self._model.decode_batch, self.finish)


def is_trained_here(path: Path) -> bool:
    """Whether a tokenizer.json is what :func:`train_word_pieces` writes."""
    content = path.read_bytes()
    begin = b'"vocab":{' + b",".join(
        f'"{token}":{i}'.encode() for i, token in enumerate(SPECIAL)
    )  # fmt: skip
    # In a large file of others the search is faster than a parser.
    return b'"WordPiece"' in content and begin in b"".join(content.split())


def train_word_pieces(
    lines: Iterable[str], size: int, path: str | os.PathLike, lowercase: bool = True
) -> WordPieces:
    """Trains ``size`` pieces and writes them as tokenizer.json: ``[CLS]`` begins, ``[SEP]`` ends.

    Texts are split at spaces and punctuation, a word's further pieces begin with ``##`` (Devlin et
    al. 2019). The library breaks ties between equally common pieces by chance: of the same text, a
    few of the rarest pieces, and the ids, differ from call to call.

    Args:
      lowercase: as BERT's uncased vocabulary, which drops accents too.

    Raises:
      ValueError: the text has too few pieces.
    """
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    start = SPECIAL[START_ID]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, START_ID)]
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    if backend.get_vocab_size() != size:
        raise ValueError(
            f"size = {size} pieces cannot be made of this text: it has "
            f"{backend.get_vocab_size()}. Give more text, or a size of at most that."
        )
    with written(Path(path)) as partial:
        backend.save(str(partial))
    return WordPieces(path)
