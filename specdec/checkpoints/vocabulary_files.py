"""The files of a vocabulary: which there are, where they are, and how they go with a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from specdec.checkpoints.files import read_json

VOCABULARY = "spiece.model"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
# Byte-level BPE as transformers and as OpenAI name its files: tokens and merges.
MERGES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
# The first that is there is read, as transformers does.
VOCABULARIES = (TOKENIZER, VOCABULARY, *MERGES)
# What is read beside any of them.
BESIDE = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
FILES = (*VOCABULARIES, *MERGES.values(), *BESIDE)


def vocabulary_in(*directories: Path) -> Path | None:
    """The first file of a vocabulary in directories; None where there is none.

    ByT5, whose tokens are bytes, has tokenizer_config.json alone.
    """
    for directory in directories:
        if _is_of_bytes(directory / TOKENIZER_CONFIG):
            return directory / TOKENIZER_CONFIG
        for name in VOCABULARIES:
            if (directory / name).is_file():
                return directory / name
    return None


def _is_of_bytes(path: Path) -> bool:
    """Whether a tokenizer_config.json is ByT5's."""
    return path.is_file() and read_json(path).get("tokenizer_class") == "ByT5Tokenizer"


def copy_vocabulary(file: Path, directory: Path) -> None:
    """Copies a vocabulary with all that is read beside it, under a name that is looked for."""
    own = file.name in (*VOCABULARIES, TOKENIZER_CONFIG)
    shutil.copyfile(file, directory / (file.name if own else VOCABULARY))
    for name in {*BESIDE, MERGES.get(file.name, TOKENIZER_CONFIG)} - {file.name}:
        if file.with_name(name).is_file():
            shutil.copyfile(file.with_name(name), directory / name)
