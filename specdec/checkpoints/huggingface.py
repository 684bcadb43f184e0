"""T5 checkpoints of Hugging Face transformers (safetensors) as T5X parameter trees, and back.

Reads and writes with numpy alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.hf_config import (
    format_config,
    format_generation_config,
    parse_config,
    scales_logits,
)
from specdec.checkpoints.hf_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    StoredTensor,
    read_json,
    weight_files,
    write_weights,
)
from specdec.checkpoints.hf_names import (
    EMBEDDING,
    EMBEDDING_NAMES,
    HEAD,
    UNUSED_NAMES,
    Parameter,
    all_parameters,
    embedding_parameter,
    head_parameter,
    layer_parameters,
    parameter_shapes,
)
from specdec.checkpoints.parameters import (
    as_dtype,
    check_names,
    check_parameters,
    written_whole,
)
from specdec.core.files import write_json
from specdec.models.t5.config import T5Config

GENERATION_CONFIG = "generation_config.json"
VOCABULARY = "spiece.model"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
VOCABULARIES = (VOCABULARY, TOKENIZER)  # transformers 5 writes the second alone.
HUB_FILES = [
    CONFIG, GENERATION_CONFIG, WEIGHTS, "model-*-of-*.safetensors", INDEX, *VOCABULARIES,
    TOKENIZER_CONFIG,
]  # fmt: skip
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

MAX_EXTRA_IDS = 100  # T5's sentinel tokens, which follow the vocabulary's own pieces.


def load_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[T5Config, dict[str, Any]]:
    """Loads a checkpoint into memory: :func:`open_huggingface` with numpy arrays.

    Kernels are transposed views of what was read.

    Raises:
      CheckpointError: see :func:`open_huggingface`.
    """
    config, params = open_huggingface(directory_or_hub_id, dtype)
    return config, jax.tree.map(np.asarray, params)


def open_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[T5Config, dict[str, Any]]:
    """Opens a T5, T5 v1.1, Flan-T5 or mT5 checkpoint, whose parameters are read when used.

    Logits follow transformers 5: they come from ``lm_head.weight`` where the file has one and from
    the embedding otherwise, scaled by d_model**-0.5 as ``scales_logits`` says. A head that is both
    separate and scaled has the factor multiplied into its kernel.

    Args:
      directory_or_hub_id: a directory with config.json and model.safetensors (or its shards and
        their index), or a model's id on the Hugging Face Hub, such as "google/flan-t5-small".
      dtype: of the parameters: "float32", "bfloat16" or "float16".

    Returns:
      The config, its ``dtype`` (that of activations) left at "float32", and the parameters: nested
      dicts of :class:`specdec.checkpoints.hf_files.StoredTensor`, named and shaped as in
      ``specdec.models.t5.network.init_params``.

    Raises:
      CheckpointError: files are missing or damaged, the model is no T5, or a parameter is missing
        or unknown; when a parameter is read: it is quantized, of another shape than config.json
        says or not finite, or its file is gone.
    """
    stored_dtype = as_dtype(dtype)
    directory = _local_directory(directory_or_hub_id)
    config, scaled = _read_config(directory)
    layers = layer_parameters(config)

    files = weight_files(directory)
    embedding_name = next((name for name in EMBEDDING_NAMES if name in files), EMBEDDING)
    check_names(
        directory,
        required=[embedding_name, *layers],
        found=files,
        optional=[*EMBEDDING_NAMES, *UNUSED_NAMES],
        advice=f"check that {CONFIG} and the weights belong together",
    )

    def stored(name: str, parameter: Parameter, scale: float = 1.0) -> StoredTensor:
        return StoredTensor(files[name], name, parameter, stored_dtype, scale)

    embedding = stored(embedding_name, embedding_parameter(config))
    for name in EMBEDDING_NAMES[1:-1]:
        if name in files and not _equal(stored(name, embedding_parameter(config)), embedding):
            raise CheckpointError(
                f"{directory}: {name} differs from {embedding_name}; T5 shares one embedding "
                "between encoder and decoder, and a checkpoint with several cannot be loaded."
            )
    # A checkpoint without a head has the embedding for one.
    head_name = HEAD if HEAD in files else embedding_name
    head = stored(head_name, head_parameter(config), config.d_model**-0.5 if scaled else 1.0)
    tied = scaled and _equal(stored(head_name, embedding_parameter(config)), embedding)
    config = dataclasses.replace(config, tied_logits=tied)

    flat: dict[str, Any] = {embedding.parameter.path: embedding}
    if not tied:
        flat[head.parameter.path] = head
    flat |= {parameter.path: stored(name, parameter) for name, parameter in layers.items()}
    return config, unflatten_dict(flat, sep="/")


def read_config(directory: str | Path) -> T5Config:
    """The network that a directory's config.json describes, its weights unseen.

    Scaled logits are taken to be tied to the embedding, as they are in every public checkpoint.

    Raises:
      CheckpointError: a file is missing or damaged, or the model is no T5.
    """
    config, scaled = _read_config(Path(directory))
    return dataclasses.replace(config, tied_logits=scaled)


def _read_config(directory: Path) -> tuple[T5Config, bool]:
    """The config, with ``tied_logits`` left open, and whether the logits are scaled."""
    raw = read_json(directory / CONFIG)
    if (directory / GENERATION_CONFIG).exists():
        generation = read_json(directory / GENERATION_CONFIG)
        raw |= {name: value for name, value in generation.items() if value is not None}
    return parse_config(raw, source=str(directory / CONFIG)), scales_logits(raw)


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    return one.name == other.name or np.array_equal(one, other)


def save_huggingface(
    directory: str | Path,
    config: T5Config,
    params: Mapping[str, Any],
    vocabulary_file: str | Path | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes a checkpoint that transformers' ``T5ForConditionalGeneration`` opens.

    The directory appears only once it is complete. mT5 models are written as T5 v1.1, which
    computes the same.

    Args:
      directory: where to write; must not exist, or be empty.
      config: the network. ``dtype``, that of activations, is not stored.
      params: as ``specdec.models.t5.network.init_params`` names and shapes them.
      vocabulary_file: a tokenizer.json, or a SentencePiece model, to go with it; the latter with up
        to 100 sentinel tokens after its pieces where the embedding has rows for them.
        ``T5Tokenizer`` opens the result, but knows no byte fallback: where the vocabulary has byte
        pieces, it gives <unk>.
      dtype: of the stored weights: "float32", "bfloat16" or "float16".
      max_shard_bytes: weights are split over several files and an index above this size.

    Raises:
      CheckpointError: the directory is not empty, a parameter is missing, unknown, of another shape
        than ``config`` says or not finite in ``dtype``, or the vocabulary does not fit the model.
    """
    stored_dtype = as_dtype(dtype)
    arrays = flatten_dict(params, sep="/")
    check_parameters("params", parameter_shapes(config), arrays)
    tokenizer = None if vocabulary_file is None else _tokenizer_config(vocabulary_file, config)

    with written_whole(Path(directory).absolute()) as partial:
        write_weights(partial, all_parameters(config), arrays, stored_dtype, max_shard_bytes)
        write_json(partial / CONFIG, format_config(config, dtype))
        write_json(partial / GENERATION_CONFIG, format_generation_config(config))
        if vocabulary_file is not None:
            own = Path(vocabulary_file).name == TOKENIZER
            shutil.copyfile(vocabulary_file, partial / (TOKENIZER if own else VOCABULARY))
            write_json(partial / TOKENIZER_CONFIG, tokenizer)


def find_vocabulary(directory_or_hub_id: str | Path) -> Path | None:
    """A checkpoint's spiece.model, else its tokenizer.json; None where it has neither.

    Raises:
      CheckpointError: neither a directory nor a model that the Hugging Face Hub gives.
    """
    return vocabulary_in(_local_directory(directory_or_hub_id))


def vocabulary_in(*directories: Path) -> Path | None:
    """The first file of a vocabulary in directories; None where there is none."""
    places = (directory / name for directory in directories for name in VOCABULARIES)
    return next(filter(Path.is_file, places), None)


def _local_directory(directory_or_hub_id: str | Path) -> Path:
    """The directory itself, or the local snapshot of a hub id (downloaded if need be)."""
    path, name = Path(directory_or_hub_id), str(directory_or_hub_id)
    if path.is_dir():
        return path
    if path.exists() or not HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"{name} is not a directory; pass one that holds {CONFIG} and {WEIGHTS}, "
            "or a model id of the Hugging Face Hub."
        )
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # The hub client raises its own, its HTTP library's and OS errors.
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{name} is not a local directory, and it could not be downloaded from the Hugging "
            f"Face Hub: pass a local directory with {CONFIG} and {WEIGHTS}, or check the model id "
            f"and the network ({type(error).__name__}: {reason})"
        ) from error


def _tokenizer_config(vocabulary_file: str | Path, config: T5Config) -> dict[str, Any]:
    """transformers' tokenizer_config.json for a SentencePiece model, sentinel tokens included."""
    import sentencepiece

    if Path(vocabulary_file).name == TOKENIZER:
        return {"tokenizer_class": "T5Tokenizer"}
    try:
        pieces = sentencepiece.SentencePieceProcessor(str(vocabulary_file)).get_piece_size()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{vocabulary_file} is not a SentencePiece model that can be read ({error})."
        ) from None
    if pieces > config.vocab_size:
        raise CheckpointError(
            f"{vocabulary_file} has {pieces} pieces, but the embedding only {config.vocab_size} "
            "rows; pass the vocabulary the model was trained with."
        )
    extra_ids = min(MAX_EXTRA_IDS, config.vocab_size - pieces)
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
