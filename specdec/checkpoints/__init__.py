"""Checkpoints of other libraries as T5X parameter trees, and back."""

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.huggingface import (
    find_vocabulary,
    load_huggingface,
    open_huggingface,
    read_config,
    save_huggingface,
)

__all__ = [
    "CheckpointError",
    "find_vocabulary",
    "load_huggingface",
    "open_huggingface",
    "read_config",
    "save_huggingface",
]
