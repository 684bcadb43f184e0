"""Small vocabularies that tests train."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M100
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB


def train_pieces(directory: Path, lines: list[str], pieces: int) -> Path:
    """A ``spiece.model`` of T5's kind, without pieces of bytes; returns its path."""
    with open(directory / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=pieces,
            model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
        )  # fmt: skip
    return directory / "spiece.model"


LINES = [
    "The quick brown fox jumps over the lazy dog and sees a cat.",
    "Grüße an den Fuß, naïve café! = 5", "日本 ＦＵＬＬ ½",
] * 30  # fmt: skip


def train_model(path: Path, kind: str = "unigram", size: int = 54, **ids: Any) -> list[str]:
    """A SentencePiece model of :data:`LINES`, with fairseq's ids unless told others; its pieces."""
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1} | ids
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, vocab_size=size, model_type=kind,
            minloglevel=2, **ids,
        )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(len(model))]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def write_marian(directory: Path, apart: bool = False) -> int:
    """Two SentencePiece models, of which not every piece has an id; how many tokens there are.

    Args:
      apart: outputs have ids of their own, in target_vocab.json.
    """
    ids = {"unk_id": 1, "eos_id": 0, "bos_id": -1}
    source = train_model(directory / "source.spm", **ids)
    target = train_model(directory / "target.spm", "bpe", 50, **ids)
    pieces = dict.fromkeys([*source, *([] if apart else target)])
    del pieces["x"]  # Unknown in texts.
    names = [*pieces, ">>fra<<", ">>deu<<", "<pad>"]
    write_json(directory / "vocab.json", {name: i for i, name in enumerate(names)})
    if apart:
        listed = {name: i for i, name in enumerate([*target, "<pad>"])}
        write_json(directory / "target_vocab.json", listed)
    write_json(directory / "tokenizer_config.json", {"separate_vocabs": apart})
    return len(names)


def write_m2m100(directory: Path) -> int:
    """M2M100's files, with the special tokens that the public ones list; the number of tokens."""
    pieces = train_model(directory / "sentencepiece.bpe.model")[3:]
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces[::2], *pieces[1::4]]
    write_json(directory / "vocab.json", {name: i for i, name in enumerate(names)})
    listed = {"additional_special_tokens": [f"__{code}__" for code in M2M100["m2m100"]]}
    write_json(directory / "special_tokens_map.json", listed)
    return len(names) + len(M2M100["m2m100"])


def write_nllb(transformers: Any, directory: Path, **config: Any) -> int:
    """tokenizer.json of NLLB; the number of tokens."""
    train_model(directory / "sentencepiece.bpe.model", "bpe")
    made = transformers.NllbTokenizer.from_pretrained(
        directory, extra_special_tokens=list(NLLB), **config
    )
    (directory / "sentencepiece.bpe.model").unlink()
    made.save_pretrained(directory)
    return len(made)
