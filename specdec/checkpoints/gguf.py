"""GGUF files, which transformers turns into a checkpoint of its own in a temporary directory."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

from specdec.checkpoints.hf_library import told
from specdec.checkpoints.parameters import CheckpointError
from specdec.core.checkpoint_files import check_whole

SUFFIX = ".gguf"
_NEEDED = ("accelerate", "gguf", "torch")  # By transformers.


def unpacked(path: Path) -> Path:
    """A directory with what transformers reads in a file: config, weights in float32, tokenizer.

    It is there until the process ends, and made once.

    Raises:
      CheckpointError: a library is missing, or transformers cannot read the file.
    """
    check_whole(path)
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise CheckpointError(
            f"{path}: transformers reads GGUF files with {', '.join(_NEEDED)}, and "
            f'{", ".join(missing)} is not installed: pip install "specdec-jax[gguf]".'
        )
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is no GGUF file; copy or download it again.")
    stat = path.stat()
    return Path(_unpacked(path.absolute(), stat.st_mtime_ns, stat.st_size).name)


@functools.cache
def _unpacked(path: Path, changed: int, size: int) -> tempfile.TemporaryDirectory:
    del changed, size  # With others it is another file.
    place: dict[str, Any] = {
        "pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name,
        "local_files_only": True,
    }  # fmt: skip
    directory = tempfile.TemporaryDirectory(prefix="specdec_gguf_", ignore_cleanup_errors=True)
    # It shows progress there, whatever its settings.
    with told(path), contextlib.redirect_stderr(io.StringIO()):
        import torch
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForSeq2SeqLM,
            AutoTokenizer,
        )
        from transformers.integrations.gguf.reader import read_gguf_metadata

        encodes = AutoConfig.from_pretrained(**place).is_encoder_decoder
        kind = AutoModelForSeq2SeqLM if encodes else AutoModelForCausalLM
        model = kind.from_pretrained(**place, dtype=torch.float32)
        if "tokenizer.ggml.model" in read_gguf_metadata(str(path))[0]:
            tokenizer = AutoTokenizer.from_pretrained(**place)
            tokenizer.save_pretrained(directory.name)
            # In the file they are the tokenizer's; the config has its class's.
            for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
                setattr(model.generation_config, name, getattr(tokenizer, name))
        vars(model)["hf_quantizer"] = None  # Weights are not in few bits any more.
        model.save_pretrained(directory.name)
    return directory
