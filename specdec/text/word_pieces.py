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

from specdec.core.files import written
from specdec.text.hugging_face import HuggingFaceTokenizer

# BERT's five, in the order that gives pad and EOS the ids that training batches have.
SPECIAL = ("[PAD]", "[SEP]", "[UNK]", "[CLS]", "[MASK]")
START_ID = SPECIAL.index("[CLS]")


def train_word_pieces(
    lines: Iterable[str], size: int, path: str | os.PathLike, lowercase: bool = True
) -> HuggingFaceTokenizer:
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
    return HuggingFaceTokenizer(Path(path))
