"""The files of a Hugging Face checkpoint: safetensors, their index, JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.hf_names import Parameter
from specdec.checkpoints.parameters import cast
from specdec.core.files import write_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

STORED_DTYPES = ("F32", "BF16", "F16")


def weight_files(directory: Path) -> dict[str, Path]:
    """The safetensors file of a checkpoint that holds each tensor, by the tensor's name.

    Raises:
      CheckpointError: no safetensors, a shard of the index absent, or a file truncated.
    """
    if (directory / WEIGHTS).exists():
        paths = [directory / WEIGHTS]
    elif (directory / INDEX).exists():
        weight_map = read_json(directory / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(
                f"{directory / INDEX} has no weight_map; copy or download the checkpoint again."
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
            files.update(dict.fromkeys(file.keys(), path))
    return files


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


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A parameter that is still on disk; ``np.asarray`` and ``jnp.asarray`` read it, each anew.

    Its file is open only meanwhile: the pages of an open one would count as the process's memory.

    Attributes:
      path: the file.
      name: the tensor's name in it.
      parameter: what it is; read as T5X's tree has it (transposing is a view).
      dtype: to read it in. (JAX asks for an attribute of this name before it reads.)
      scale: multiplied in.
    """

    path: Path
    name: str
    parameter: Parameter
    dtype: np.dtype
    scale: float = 1.0

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """Reads it.

        Raises:
          CheckpointError: stored quantized, in another shape than the parameter's, or not finite.
        """
        tensor = self._read()
        tensor = tensor.T if self.parameter.transposed else tensor
        if self.scale != 1:
            tensor = tensor * tensor.dtype.type(self.scale)
        return np.asarray(tensor, dtype)

    def _read(self) -> np.ndarray:
        label = f"{self.path.parent}: {self.name}"
        with opened(self.path) as file:
            stored = file.get_slice(self.name)
            if stored.get_dtype() not in STORED_DTYPES:
                raise CheckpointError(
                    f"{label} is stored as {stored.get_dtype()}, not as one of "
                    f"{', '.join(STORED_DTYPES)}; quantized checkpoints cannot be loaded."
                )
            if tuple(stored.get_shape()) != self.parameter.stored_shape:
                raise CheckpointError(
                    f"{label} has shape {tuple(stored.get_shape())}, but {CONFIG} asks for "
                    f"{self.parameter.stored_shape}; check that they belong together."
                )
            return cast(file.get_tensor(self.name), self.dtype, label)


def write_weights(
    directory: Path,
    table: Mapping[str, Parameter],
    arrays: Mapping[str, Any],
    dtype: np.dtype,
    max_shard_bytes: int,
) -> None:
    """Writes the tensors, a shard at a time, in as few shards as their order allows.

    Args:
      directory: where; the index goes there too when there are several shards.
      table: every parameter by Hugging Face's name.
      arrays: the values by T5X's path, shaped as ``table`` says.
      dtype: of the stored weights.
      max_shard_bytes: no shard is larger, unless a single tensor is.

    Raises:
      CheckpointError: a value is not finite in ``dtype``.
    """
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
            tensor = cast(np.asarray(arrays[path]), dtype, f"params: {path}")
            tensors[name] = np.ascontiguousarray(tensor.T if transposed else tensor)
        save_file(tensors, directory / filename, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, filename))
    if len(shards) > 1:
        total = sum(parameter.size for parameter in table.values()) * dtype.itemsize
        write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a CheckpointError names a file that is absent or holds anything else."""
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
