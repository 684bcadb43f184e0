"""The tokens that a draft generates, in a file beside its weights.

Without the tokens that its task never needs, such as those of the other language, a draft is faster
and decoding still lossless. Targets, and other tools that open the checkpoint, ignore the file.
Source: Zhao et al. 2025 (FR-Spec), where the tokens are the most frequent ones of a corpus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from specdec.checkpoints.parameters import CheckpointError
from specdec.core import files
from specdec.core.checkpoint_files import read_json

FILE_NAME = "draft_vocabulary.json"


def save_draft_vocabulary(directory: str | os.PathLike, tokens: Iterable[int]) -> Path:
    """Writes the tokens, in ascending order; the file appears when it is whole."""
    path = Path(directory) / FILE_NAME
    files.write_text(path, json.dumps({"tokens": sorted(map(int, tokens))}) + "\n")
    return path


def load_draft_vocabulary(source: str | os.PathLike, vocab_size: int) -> list[int] | None:
    """The tokens, ascending; None where a checkpoint's directory has no such file.

    Raises:
      CheckpointError: it is not what :func:`save_draft_vocabulary` writes, or of other tokens.
    """
    path = Path(source) / FILE_NAME
    if not path.exists():
        return None
    found = read_json(path).get("tokens")
    tokens = found if isinstance(found, list) else []
    # JSON's true is an int of Python's, too.
    valid = all(type(t) is int for t in tokens) and tokens == sorted(set(tokens))
    if not valid or not tokens or tokens[0] < 0 or tokens[-1] >= vocab_size:
        raise CheckpointError(
            f'{path} must hold {{"tokens": [...]}}, ascending ids below the vocabulary\'s size, '
            f"{vocab_size}. Make it again (configs/training/quickstart_draft_vocabulary.gin), or "
            "remove it: the draft then generates every token."
        )
    return tokens
