"""T5 checkpoints of Hugging Face transformers (safetensors) as T5X parameter trees, and back.

Reads and writes with numpy alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.checkpoints import hf_names
from specdec.checkpoints.parameters import (
    DTYPES,
    CheckpointError,
    Index,
    StoredArray,
    as_dtype,
    cast,
    check_names,
    check_parameters,
    part_of,
    read_as,
    written_whole,
)
from specdec.core.files import write_json
from specdec.models.t5.config import T5Config

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VOCABULARY = "spiece.model"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
VOCABULARIES = (VOCABULARY, TOKENIZER)  # transformers 5 writes the second alone.
HUB_FILES = [
    CONFIG, GENERATION_CONFIG, WEIGHTS, "model-*-of-*.safetensors", INDEX, *VOCABULARIES,
    TOKENIZER_CONFIG,
]  # fmt: skip
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

STORED_DTYPES = {"F32": DTYPES["float32"], "BF16": DTYPES["bfloat16"], "F16": DTYPES["float16"]}
MAX_EXTRA_IDS = 100  # T5's sentinel tokens, which follow the vocabulary's own pieces.


def load_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[T5Config, dict[str, Any]]:
    """:func:`open_huggingface` into numpy arrays. Kernels are transposed views of what was read."""
    config, params = open_huggingface(directory_or_hub_id, dtype)
    return config, jax.tree.map(np.asarray, params)


def open_huggingface(
    directory_or_hub_id: str | Path, dtype: str | None = "float32"
) -> tuple[T5Config, dict[str, Any]]:
    """Opens a T5, T5 v1.1, Flan-T5 or mT5 checkpoint, whose parameters are read when used.

    Logits follow transformers 5: they come from ``lm_head.weight`` where the file has one and from
    the embedding otherwise, scaled by d_model**-0.5 as config.json asks. A head that is both
    separate and scaled has the factor multiplied into its kernel, in float32 if ``dtype`` is None.

    Args:
      directory_or_hub_id: a directory with config.json and model.safetensors (or its shards and
        their index), or a model's id on the Hugging Face Hub, such as "google/flan-t5-small".
      dtype: of the parameters: "float32", "bfloat16" or "float16"; None for each as it is stored.

    Returns:
      The config, its ``dtype`` (of activations) "float32", and nested dicts of
      :class:`specdec.checkpoints.parameters.StoredArray`, named and shaped as T5X's tree.

    Raises:
      CheckpointError: files are missing or damaged, the model is no T5, or a parameter is missing
        or unknown; see also :meth:`specdec.checkpoints.parameters.StoredArray.read`.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    directory = local_directory(directory_or_hub_id)
    config = read_config(directory)
    scaled = config.tied_logits
    layers = hf_names.all_parameters(dataclasses.replace(config, tied_logits=False))
    shared, head = layers.pop(hf_names.EMBEDDING), layers.pop(hf_names.HEAD)

    files = _weight_files(directory)
    found = [name for name in hf_names.EMBEDDING_NAMES if name in files]
    embedding_name = found[0] if found else hf_names.EMBEDDING
    optional = [*hf_names.EMBEDDING_NAMES, *hf_names.UNUSED_NAMES]
    together = f"{CONFIG} and the weights"
    check_names(directory, [embedding_name, *layers], files, together, optional)

    def stored(name: str, parameter: hf_names.Parameter, scale: float = 1.0) -> StoredArray:
        path, kind = files[name]
        # A factor would be rounded in fewer bits; other kinds are refused when they are read.
        as_stored = read_as(STORED_DTYPES.get(kind) if scale == 1 else None)
        return _stored(path, name, parameter, wanted or as_stored, scale)

    embedding = stored(embedding_name, shared)

    def is_embedding(name: str) -> bool:
        return name == embedding_name or np.array_equal(stored(name, shared), embedding)

    for name in found:
        if name != hf_names.HEAD and not is_embedding(name):
            raise CheckpointError(
                f"{directory}: {name} differs from {embedding_name}; T5 shares one embedding "
                "between encoder and decoder, and a checkpoint with several cannot be loaded."
            )
    # A checkpoint without a head has the embedding for one.
    head_name = hf_names.HEAD if hf_names.HEAD in files else embedding_name
    config = dataclasses.replace(config, tied_logits=scaled and is_embedding(head_name))

    flat: dict[str, Any] = {shared.path: embedding}
    if not config.tied_logits:
        scale = config.d_model**-0.5 if scaled else 1.0
        flat[head.path] = stored(head_name, head, scale)
    flat |= {parameter.path: stored(name, parameter) for name, parameter in layers.items()}
    return config, unflatten_dict(flat, sep="/")


def read_config(directory: Path) -> T5Config:
    """The network that a directory's config.json describes: see :func:`hf_names.parse_config`.

    Raises:
      CheckpointError: a file is missing or damaged, or the model is no T5.
    """
    raw = _read_json(directory / CONFIG)
    if (directory / GENERATION_CONFIG).exists():
        generation = _read_json(directory / GENERATION_CONFIG)
        raw |= {name: value for name, value in generation.items() if value is not None}
    return hf_names.parse_config(raw, source=str(directory / CONFIG))


def save_huggingface(
    directory: str | Path, config: T5Config, params: Mapping[str, Any],
    vocabulary_file: str | Path | None = None, dtype: str = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> None:  # fmt: skip
    """Writes a checkpoint that transformers' ``T5ForConditionalGeneration`` opens.

    mT5 models are written as T5 v1.1, which computes the same.

    Args:
      directory: must not exist, or be empty; appears only once it is complete.
      config: the network. ``dtype``, that of activations, is not stored.
      params: named and shaped as T5X's tree.
      vocabulary_file: a tokenizer.json, or a SentencePiece model, to go with it; the latter with up
        to 100 sentinel tokens after its pieces where the embedding has rows for them.
        ``T5Tokenizer`` opens the result, but knows no byte fallback: where the vocabulary has byte
        pieces, it gives <unk>.
      dtype: of the stored weights, as in :func:`open_huggingface`.
      max_shard_bytes: weights are split over several files and an index above this size.

    Raises:
      CheckpointError: the directory is not empty, a parameter is missing, unknown, of another shape
        than ``config`` has or not finite in ``dtype``, or the vocabulary does not fit the model.
    """
    stored_dtype = as_dtype(dtype)
    arrays = flatten_dict(params, sep="/")
    check_parameters("params", hf_names.parameter_shapes(config), arrays)
    tokenizer = None if vocabulary_file is None else _tokenizer_config(vocabulary_file, config)

    with written_whole(Path(directory).absolute()) as partial:
        _write_weights(partial, config, arrays, stored_dtype, max_shard_bytes)
        write_json(partial / CONFIG, hf_names.format_config(config, dtype))
        write_json(partial / GENERATION_CONFIG, hf_names.format_generation_config(config))
        if vocabulary_file is not None:
            own = Path(vocabulary_file).name == TOKENIZER
            shutil.copyfile(vocabulary_file, partial / (TOKENIZER if own else VOCABULARY))
            write_json(partial / TOKENIZER_CONFIG, tokenizer)


def vocabulary_in(*directories: Path) -> Path | None:
    """The first file of a vocabulary in directories; None where there is none."""
    places = (directory / name for directory in directories for name in VOCABULARIES)
    return next(filter(Path.is_file, places), None)


def local_directory(directory_or_hub_id: str | Path) -> Path:
    """The directory itself, or the local snapshot of a hub id (downloaded if need be).

    Raises:
      CheckpointError: neither a directory nor a model that the Hugging Face Hub gives.
    """
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


@contextlib.contextmanager
def opened(path: Path) -> Iterator[safe_open]:
    """A safetensors file to read; CheckpointError if it cannot be."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or corrupt, or cannot be read ({error}); "
            "copy or download it again."
        ) from None


def _weight_files(directory: Path) -> dict[str, tuple[Path, str]]:
    """For each tensor of a checkpoint, the file that holds it and what the file calls its dtype."""
    if (directory / WEIGHTS).exists():
        paths = [directory / WEIGHTS]
    elif (directory / INDEX).exists():
        weight_map = _read_json(directory / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(
                f"{directory / INDEX} has no weight_map; copy or download the checkpoint again."
            )
        for tensor, name in weight_map.items():
            inside = isinstance(name, str) and name and not Path(name).is_absolute()
            if not inside or ".." in Path(name).parts:
                raise CheckpointError(
                    f"{directory / INDEX} gives {tensor} the file {name!r}, which is no name of a "
                    "file in the checkpoint's directory; copy or download the checkpoint again."
                )
        paths = [directory / name for name in sorted(set(weight_map.values()))]
    else:
        pickles = sorted(path.name for path in directory.glob("pytorch_model*"))
        found = f" (only {', '.join(pickles)})" if pickles else ""
        raise CheckpointError(
            f"{directory} has neither {WEIGHTS} nor {INDEX}{found}; a PyTorch checkpoint must be "
            "converted first: load it with transformers and save_pretrained it again."
        )
    files = {}
    for path in paths:
        if not path.exists():
            raise CheckpointError(
                f"{path} is missing, though {INDEX} lists it; copy or download that shard."
            )
        with opened(path) as file:
            names = file.keys()
            files |= {name: (path, file.get_slice(name).get_dtype()) for name in names}
    return files


def _stored(
    path: Path, name: str, parameter: hf_names.Parameter, dtype: np.dtype, scale: float
) -> StoredArray:
    """A tensor as T5X's tree has it (transposing is a view).

    Its file is open only while it is read: an open one's pages would count as the process's memory.
    """
    label = f"{path.parent}: {name}"

    def load(*parts: Index) -> np.ndarray:
        with opened(path) as file:
            stored = file.get_slice(name)
            kind, shape = stored.get_dtype(), tuple(stored.get_shape())
            if kind not in STORED_DTYPES:
                raise CheckpointError(
                    f"{label} is stored as {kind}, not as one of {', '.join(STORED_DTYPES)}; "
                    "quantized checkpoints cannot be loaded."
                )
            if shape != parameter.stored_shape:
                raise CheckpointError(
                    f"{label} has shape {shape}, but {CONFIG} asks for {parameter.stored_shape}; "
                    "check that they belong together."
                )
            return part_of(parameter.turned(file.get_tensor(name)), parts)

    return StoredArray(label, parameter.shape, dtype, load, scale)


def _write_weights(
    directory: Path, config: T5Config, arrays: Mapping[str, Any], dtype: np.dtype,
    max_shard_bytes: int,
) -> None:  # fmt: skip
    """Writes the tensors, a shard at a time, in as few shards as their order allows.

    No shard is larger than ``max_shard_bytes``, unless a single tensor is. Several have an index.
    """
    table = hf_names.all_parameters(config)
    sizes = {name: math.prod(table[name].shape) * dtype.itemsize for name in table}
    shards, room = [[]], max_shard_bytes
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(name)
        room -= size

    weight_map = {}
    for i, names in enumerate(shards, start=1):
        single = len(shards) == 1
        filename = WEIGHTS if single else f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name in names:
            path = table[name].path
            tensor = cast(np.asarray(arrays[path]), dtype, f"params: {path}")
            tensors[name] = np.ascontiguousarray(table[name].turned(tensor))
        save_file(tensors, directory / filename, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, filename))
    if len(shards) > 1:
        metadata = {"total_size": sum(sizes.values())}
        write_json(directory / INDEX, {"metadata": metadata, "weight_map": weight_map})


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a CheckpointError names a file that is absent or holds anything else."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}; pass the directory of a T5 checkpoint."
        ) from None
    except ValueError as error:
        problem = f"valid JSON ({error})"
    else:
        if isinstance(contents, dict):
            return contents
        problem = "a JSON object"
    raise CheckpointError(f"{path} is not {problem}; copy or download it again.")


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
