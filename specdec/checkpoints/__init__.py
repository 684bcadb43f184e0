"""Checkpoints of other libraries as T5X parameter trees, and back."""

from specdec.checkpoints.formats import find_vocabulary, open_checkpoint, read_config
from specdec.checkpoints.huggingface import load_huggingface, open_huggingface, save_huggingface
from specdec.checkpoints.parameters import CheckpointError
from specdec.checkpoints.t5x import find_checkpoint, is_t5x, open_t5x, save_t5x
from specdec.models.placing import read_sharded

__all__ = [
    "CheckpointError",
    "find_checkpoint",
    "find_vocabulary",
    "is_t5x",
    "load_huggingface",
    "open_checkpoint",
    "open_huggingface",
    "open_t5x",
    "read_config",
    "read_sharded",
    "save_huggingface",
    "save_t5x",
]
