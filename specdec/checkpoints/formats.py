"""Checkpoints of either library: the files of a directory show which one wrote it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.checkpoints import generation_options, hf_files, huggingface, t5x
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.transformer.config import TransformerConfig as Config
from specdec.text.files import vocabulary_in


def open_checkpoint(
    source: str | Path, dtype: str | None = "float32"
) -> tuple[Config, dict[str, Any]]:
    """:func:`specdec.checkpoints.open_huggingface` or :func:`specdec.checkpoints.open_t5x`."""
    opener = t5x.open_t5x if t5x.is_t5x(source) else huggingface.open_huggingface
    return opener(source, dtype)


def located(source: str | Path) -> str | Path:
    """Path of a checkpoint: the local snapshot of a hub id, anything else itself.

    Raises:
      CheckpointError: neither a directory nor a model that the Hugging Face Hub gives.
    """
    return source if t5x.is_t5x(source) else hf_files.local_directory(source)


def options_of(
    source: str | Path, config: Any, given: Mapping[str, Any] | None = None
) -> generation_options.GenerationOptions:
    """Options that a directory's files set for transformers' ``generate``.

    Warns of options that have to be passed to decoding. T5X's checkpoints have no such files.

    Args:
      config: its network's.
      given: options in place of the files'.

    Raises:
      CheckpointError: a file cannot be read, or asks for what no method can do.
      ValueError: what is given is no option.
    """
    if not os.path.isdir(source) or t5x.is_t5x(source):
        return generation_options.GenerationOptions()
    options = generation_options.read_options(
        Path(source), config.reads_prefix, given, listens=config.features is not None
    )
    if "" in options.refused:
        raise CheckpointError(options.refused[""])
    if options.advice is not None:
        warnings.warn(options.advice, stacklevel=4)
    return options


def read_config(source: str | Path) -> Config:
    """A checkpoint's network, its weights unseen; CheckpointError if it is damaged or none."""
    return t5x.open_t5x(source)[0] if t5x.is_t5x(source) else huggingface.read_config(Path(source))


def find_vocabulary(source: str | Path) -> Path | None:
    """A checkpoint's vocabulary (spiece.model, tokenizer.json ...), or None where it has none.

    T5X names its vocabulary in gin files: it is found only where someone put it, in the directory
    or in that above it, and not in Google Cloud Storage.

    Raises:
      CheckpointError: neither a directory nor a model that the Hugging Face Hub gives.
    """
    if not t5x.is_t5x(source):
        return vocabulary_in(hf_files.local_directory(source))
    if t5x.is_remote(os.fspath(source)):
        return None
    path = Path(source).absolute()
    return vocabulary_in(path, path.parent)
