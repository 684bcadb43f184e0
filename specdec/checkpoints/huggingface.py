"""T5 checkpoints of Hugging Face transformers (safetensors) as T5X parameter trees, and back.

Reads and writes with numpy alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # Registers bfloat16 with numpy, which safetensors' numpy reader relies on.
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.hf_config import (
    format_config,
    format_generation_config,
    parse_config,
    scales_logits,
)
from specdec.checkpoints.hf_names import (
    EMBEDDING,
    EMBEDDING_NAMES,
    HEAD,
    UNUSED_NAMES,
    Parameter,
    embedding_parameter,
    head_parameter,
    layer_parameters,
)
from specdec.models.t5.config import T5Config

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VOCABULARY = "spiece.model"
HUB_FILES = [CONFIG, GENERATION_CONFIG, WEIGHTS, "model-*-of-*.safetensors", INDEX, VOCABULARY]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
STORED_DTYPES = ("F32", "BF16", "F16")
MAX_EXTRA_IDS = 100  # T5's sentinel tokens, which follow the vocabulary's own pieces.


def load_huggingface(
    directory_or_hub_id: str | Path, dtype: str = "float32"
) -> tuple[T5Config, dict[str, Any]]:
    """Loads a T5, T5 v1.1, Flan-T5 or mT5 checkpoint.

    Logits follow transformers 5: they come from ``lm_head.weight`` where the file has one and from
    the embedding otherwise, scaled by d_model**-0.5 as ``scales_logits`` says. A head that is both
    separate and scaled has the factor multiplied into its kernel.

    Args:
      directory_or_hub_id: a directory with config.json and model.safetensors (or its shards and
        their index), or a model's id on the Hugging Face Hub, such as "google/flan-t5-small".
      dtype: of the returned parameters: "float32", "bfloat16" or "float16".

    Returns:
      The config, its ``dtype`` (that of activations) left at "float32", and the parameters: nested
      dicts of numpy arrays as ``specdec.models.t5.network.init_params`` names and shapes them.
      Kernels are transposed views, so that the model is in memory once.

    Raises:
      CheckpointError: files are missing or damaged, the model is no T5, or a parameter is missing,
        unknown, of another shape than config.json says, or not finite.
    """
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    directory = _local_directory(directory_or_hub_id)
    raw = _read_json(directory / CONFIG)
    if (directory / GENERATION_CONFIG).exists():
        raw = {**raw, **_read_json(directory / GENERATION_CONFIG)}
    config = parse_config(raw, source=str(directory / CONFIG))
    scaled = scales_logits(raw)
    layers = layer_parameters(config)

    with contextlib.ExitStack() as stack:
        files = _open_weights(directory, stack)
        embedding_name = next((name for name in EMBEDDING_NAMES if name in files), EMBEDDING)
        _check_names(
            directory,
            required=[embedding_name, *layers],
            found=files,
            optional=[*EMBEDDING_NAMES, *UNUSED_NAMES],
            advice=f"check that {CONFIG} and the weights belong together",
        )

        def read(name: str, parameter: Parameter) -> np.ndarray:
            return _read_tensor(files[name], name, parameter, DTYPES[dtype], directory)

        embedding = read(embedding_name, embedding_parameter(config))
        for name in EMBEDDING_NAMES[1:-1]:
            copy = read(name, embedding_parameter(config)) if name in files else embedding
            if not np.array_equal(copy, embedding):
                raise CheckpointError(
                    f"{directory}: {name} differs from {embedding_name}; T5 shares one embedding "
                    "between encoder and decoder, and a checkpoint with several cannot be loaded."
                )
        kernel = read(HEAD, head_parameter(config)) if HEAD in files else embedding.T
        tied = scaled and np.array_equal(kernel, embedding.T)
        config = dataclasses.replace(config, tied_logits=tied)

        flat = {embedding_parameter(config).path: embedding}
        if not tied:
            factor = config.d_model**-0.5 if scaled else 1.0
            flat[head_parameter(config).path] = kernel * kernel.dtype.type(factor)
        for name, parameter in layers.items():
            flat[parameter.path] = read(name, parameter)
    return config, _nest(flat)


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
      vocabulary_file: a SentencePiece model to go with it, with up to 100 sentinel tokens after its
        pieces where the embedding has rows for them; ``T5Tokenizer`` opens the result.
      dtype: of the stored weights: "float32", "bfloat16" or "float16".
      max_shard_bytes: weights are split over several files and an index above this size.

    Raises:
      CheckpointError: the directory is not empty, a parameter is missing, unknown, of another shape
        than ``config`` says or not finite in ``dtype``, or the vocabulary does not fit the model.
    """
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    directory = Path(directory).absolute()
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise CheckpointError(
            f"{directory} exists and is not an empty directory; remove it or choose another."
        )
    arrays = _flatten(params)
    table = {EMBEDDING: embedding_parameter(config), **layer_parameters(config)}
    if not config.tied_logits:
        table[HEAD] = head_parameter(config)
    _check_names(
        "params",
        required=[parameter.path for parameter in table.values()],
        found=arrays,
        advice="check that the config and the parameters belong together",
    )
    tokenizer = None if vocabulary_file is None else _tokenizer_config(vocabulary_file, config)

    partial = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir(parents=True)
    try:
        _write_weights(partial, table, arrays, DTYPES[dtype], max_shard_bytes)
        _write_json(partial / CONFIG, format_config(config, dtype))
        _write_json(partial / GENERATION_CONFIG, format_generation_config(config))
        if vocabulary_file is not None:
            shutil.copyfile(vocabulary_file, partial / VOCABULARY)
            _write_json(partial / "tokenizer_config.json", tokenizer)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def find_vocabulary(directory: str | Path) -> Path | None:
    """The SentencePiece model (spiece.model) of a checkpoint's directory, or None without one."""
    path = Path(directory) / VOCABULARY
    return path if path.is_file() else None


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


def _open_weights(directory: Path, stack: contextlib.ExitStack) -> dict[str, safe_open]:
    """Opens every safetensors file of a checkpoint; returns the open file of each tensor's name."""
    if (directory / WEIGHTS).exists():
        paths = [directory / WEIGHTS]
    elif (directory / INDEX).exists():
        weight_map = _read_json(directory / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(
                f"{directory / INDEX} has no weight_map; copy or download the checkpoint again."
            )
        paths = [directory / name for name in sorted(set(weight_map.values()))]
    else:
        pickles = sorted(path.name for path in directory.glob("pytorch_model*"))
        found = f" (only {', '.join(pickles)})" if pickles else ""
        raise CheckpointError(
            f"{directory} has neither {WEIGHTS} nor {INDEX}{found}; a PyTorch checkpoint must first "
            "be converted: load it with transformers and save_pretrained it again."
        )
    files = {}
    for path in paths:
        if not path.exists():
            raise CheckpointError(
                f"{path} is missing, though {INDEX} lists it; copy or download that shard."
            )
        try:
            file = stack.enter_context(safe_open(path, framework="numpy"))
        except SafetensorError as error:
            raise CheckpointError(
                f"{path} is truncated or corrupt ({error}); copy or download it again."
            ) from None
        files.update(dict.fromkeys(file.keys(), file))
    return files


def _check_names(
    source: str | Path,
    required: Iterable[str],
    found: Iterable[str],
    advice: str,
    optional: Iterable[str] = (),
) -> None:
    required, found = set(required), set(found)
    for problem, names in (
        ("is missing", required - found),
        ("has the unexpected", found - required - set(optional)),
    ):
        if names:
            first, *others = sorted(names)
            more = f" and {len(others)} more" if others else ""
            raise CheckpointError(f"{source} {problem} parameter {first}{more}; {advice}.")


def _read_tensor(
    file: safe_open, name: str, parameter: Parameter, dtype: np.dtype, directory: Path
) -> np.ndarray:
    """One tensor, oriented as in T5X's tree; transposing is a view."""
    stored = file.get_slice(name)
    if stored.get_dtype() not in STORED_DTYPES:
        raise CheckpointError(
            f"{directory}: {name} is stored as {stored.get_dtype()}, not as one of "
            f"{', '.join(STORED_DTYPES)}; quantized checkpoints cannot be loaded."
        )
    if tuple(stored.get_shape()) != parameter.stored_shape:
        raise CheckpointError(
            f"{directory}: {name} has shape {tuple(stored.get_shape())}, but {CONFIG} asks for "
            f"{parameter.stored_shape}; check that they belong together."
        )
    tensor = _cast(file.get_tensor(name), dtype, f"{directory}: {name}")
    return tensor.T if parameter.transposed else tensor


def _cast(tensor: np.ndarray, dtype: np.dtype, label: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # Overflow is reported below, by name.
        tensor = tensor.astype(dtype, copy=False)
    if not np.isfinite(tensor).all():
        raise CheckpointError(
            f"{label} holds NaN or infinite values in {dtype.name}; the weights are damaged, "
            "or need a dtype of wider range."
        )
    return tensor


def _write_weights(
    directory: Path,
    table: Mapping[str, Parameter],
    arrays: Mapping[str, Any],
    dtype: np.dtype,
    max_shard_bytes: int,
) -> None:
    """Writes the tensors, a shard at a time, in as few shards as their order allows."""
    for parameter in table.values():
        shape = tuple(np.shape(arrays[parameter.path]))
        if shape != parameter.shape:
            raise CheckpointError(
                f"params: {parameter.path} has shape {shape}, but the config asks for "
                f"{parameter.shape}; check that they belong together."
            )
    shards, room = [[]], max_shard_bytes
    for name, parameter in table.items():
        size = parameter.size * dtype.itemsize
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
            path, transposed = table[name].path, table[name].transposed
            tensor = _cast(np.asarray(arrays[path]), dtype, f"params: {path}")
            tensors[name] = np.ascontiguousarray(tensor.T if transposed else tensor)
        save_file(tensors, directory / filename, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, filename))
    if len(shards) > 1:
        total = sum(parameter.size for parameter in table.values()) * dtype.itemsize
        _write_json(
            directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map}
        )


def _tokenizer_config(vocabulary_file: str | Path, config: T5Config) -> dict[str, Any]:
    """transformers' tokenizer_config.json for a SentencePiece model, sentinel tokens included."""
    import sentencepiece

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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}; pass the directory of a T5 checkpoint."
        ) from None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}); copy or download it again."
        ) from None
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path} is not a JSON object; copy or download it again.")
    return contents


def _write_json(path: Path, contents: Any) -> None:
    path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _nest(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat.update(_flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value})
    return flat
