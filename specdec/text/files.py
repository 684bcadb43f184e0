"""The files of a vocabulary: which there are, where they are, and how they go with a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from specdec.core.checkpoint_files import read_json

# SentencePiece models: T5's and Pegasus', fairseq's, Llama's and Gemma's.
VOCABULARY, FAIRSEQ_PIECES, LLAMA_PIECES = (
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
)  # fmt: skip
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
# Byte-level BPE as transformers and as OpenAI name its files: tokens and merges.
MERGES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
# Ids of pieces, and beside it the SentencePiece models whose they are: Marian's two, of texts and
# of outputs, or M2M100's one. Some Marians' outputs have ids of their own, in another file.
PIECE_IDS, TARGET_PIECE_IDS = "vocab.json", "target_vocab.json"
SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
# The first that is there is what a vocabulary is called by.
VOCABULARIES = (TOKENIZER, VOCABULARY, FAIRSEQ_PIECES, *MERGES, LLAMA_PIECES)
# Files that are read beside any of them.
BESIDE = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
_BESIDE_IDS = (SOURCE_PIECES, TARGET_PIECES, FAIRSEQ_PIECES, TARGET_PIECE_IDS)
FILES = tuple(dict.fromkeys((*VOCABULARIES, *MERGES.values(), *_BESIDE_IDS, *BESIDE)))


def vocabulary_in(*directories: Path) -> Path | None:
    """The first file of a vocabulary in directories; None where there is none.

    ByT5, whose tokens are bytes, has tokenizer_config.json alone.
    """
    for directory in directories:
        if _is_of_bytes(directory / TOKENIZER_CONFIG):
            return directory / TOKENIZER_CONFIG
        if has_piece_ids(directory / PIECE_IDS):
            return directory / PIECE_IDS
        for name in VOCABULARIES:
            if (directory / name).is_file():
                return directory / name
    return None


def has_piece_ids(path: Path) -> bool:
    """Whether a file holds ids of SentencePiece's pieces, as Marian's and M2M100's do."""
    models = (SOURCE_PIECES, FAIRSEQ_PIECES)
    there = any(path.with_name(name).is_file() for name in models)
    return path.name == PIECE_IDS and path.is_file() and there


def _is_of_bytes(path: Path) -> bool:
    """Whether a tokenizer_config.json is ByT5's."""
    return path.is_file() and read_json(path).get("tokenizer_class") == "ByT5Tokenizer"


def copy_vocabulary(file: Path, directory: Path) -> None:
    """Copies a vocabulary with all that is read beside it, under a name that is looked for."""
    own = file.name in (*VOCABULARIES, TOKENIZER_CONFIG)
    shutil.copyfile(file, directory / (file.name if own else VOCABULARY))
    for name in {*BESIDE, *_BESIDE_IDS, *MERGES.values()} - {file.name}:
        if file.with_name(name).is_file():
            shutil.copyfile(file.with_name(name), directory / name)
