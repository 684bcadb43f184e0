"""The files of a vocabulary: which there are, where they are, and how they go with a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from specdec.checkpoints.parameters import CheckpointError

VOCABULARY = "spiece.model"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
# transformers 5 writes tokenizer.json alone; the last two are GPT-2's, older ones and OpenAI's.
VOCABULARIES = (VOCABULARY, TOKENIZER, "vocab.json", "encoder.json")
# What is read beside them: merges, and tokens that were added.
BESIDE = {"vocab.json": ("merges.txt", "added_tokens.json"), "encoder.json": ("vocab.bpe",)}
FILES = (*VOCABULARIES, *(name for names in BESIDE.values() for name in names), TOKENIZER_CONFIG)


def vocabulary_in(*directories: Path) -> Path | None:
    """The first file of a vocabulary in directories; None where there is none.

    ByT5, whose tokens are bytes, has tokenizer_config.json alone.
    """
    places = (directory / name for directory in directories for name in VOCABULARIES)
    configs = (directory / TOKENIZER_CONFIG for directory in directories)
    return next(filter(Path.is_file, places), None) or next(filter(_is_of_bytes, configs), None)


def _is_of_bytes(path: Path) -> bool:
    """Whether a tokenizer_config.json is ByT5's."""
    if not path.is_file():
        return False
    try:
        return (
            json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class") == "ByT5Tokenizer"
        )
    except (ValueError, AttributeError):
        raise CheckpointError(f"{path} is not a JSON object; copy or download it again.") from None


def copy_vocabulary(file: Path, directory: Path) -> None:
    """Copies a vocabulary with what is read beside it, under a name that is looked for."""
    own = file.name in (*VOCABULARIES, TOKENIZER_CONFIG)
    shutil.copyfile(file, directory / (file.name if own else VOCABULARY))
    for name in BESIDE.get(file.name, ()):
        if file.with_name(name).is_file():
            shutil.copyfile(file.with_name(name), directory / name)


def same_vocabulary(ours: Path, theirs: Path) -> bool:
    """Whether two files that :func:`vocabulary_in` found have the same tokens."""
    if {ours.name, theirs.name} == {TOKENIZER_CONFIG}:
        return True
    return ours.read_bytes() == theirs.read_bytes()
