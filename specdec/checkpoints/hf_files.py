"""The files of a Hugging Face checkpoint: where they are, and their JSON and tensors.

Reads and writes with numpy alone: neither torch nor transformers is needed.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.checkpoints import gguf
from specdec.checkpoints.parameters import (
    DTYPES,
    CheckpointError,
    Index,
    StoredArray,
    cast,
    part_of,
)
from specdec.core.checkpoint_files import check_whole, read_json
from specdec.core.files import write_json
from specdec.text import files as vocabulary_files

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"  # Of models that listen.
PROCESSOR = "processor_config.json"  # The same and more, as transformers 5 writes it.
WEIGHTS = "model.safetensors"
HEADS_TYPE = "specdec_heads"  # The model_type of what drafts on a target's hidden states.
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # PEFT's: what is beside it changes another checkpoint's weights.
HUB_FILES = [
    CONFIG, GENERATION_CONFIG, PREPROCESSOR, PROCESSOR, ADAPTER, WEIGHTS,
    "model-*-of-*.safetensors", INDEX, *vocabulary_files.FILES,
]  # fmt: skip
# A model's id, and behind @ a branch, a tag or a commit of it; with a GGUF file's name in it.
HUB_ID = re.compile(
    r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([A-Za-z0-9][\w./-]*?))?(?:/([\w.-]+\.gguf))?"
)

STORED_DTYPES = {
    "F32": DTYPES["float32"], "BF16": DTYPES["bfloat16"], "F16": DTYPES["float16"],
    "F64": np.float64,  # Rounded when it is read.
}  # fmt: skip


class Parameter(NamedTuple):
    """A parameter's path in our tree, joined by "/", its shape there, and in files."""

    path: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    is_transposed: bool  # In files; else it has another shape there, or none.

    def turned(self, array: np.ndarray) -> np.ndarray:
        """A file's array as our tree has it, or one of that as files have it."""
        if self.is_transposed:
            if array.shape == self.shape:
                return array.T.reshape(self.stored_shape)
            return array.reshape(len(array), -1).T
        return array.reshape(self.stored_shape if array.shape == self.shape else self.shape)


def task_of(reads_prefix: bool) -> str:
    """End of the name of transformers' class for a decoder-only model, or an encoder-decoder."""
    return "ForCausalLM" if reads_prefix else "ForSeq2SeqLM"


def local_directory(directory_or_hub_id: str | Path) -> Path:
    """The directory itself, or the local snapshot of a hub id (downloaded if need be).

    Args:
      directory_or_hub_id: behind a hub id may stand @ and a branch, a tag or a commit. A GGUF
        file's path, that of a directory with one, or its name behind a hub id and /, is the
        directory of what it holds.

    Raises:
      CheckpointError: neither a directory nor a model that the Hugging Face Hub gives.
    """
    path, name = Path(directory_or_hub_id), str(directory_or_hub_id)
    if path.suffix == gguf.SUFFIX and path.is_file():
        return gguf.unpacked(path)
    if path.is_dir():
        files = [] if (path / CONFIG).exists() else sorted(path.glob(f"*{gguf.SUFFIX}"))
        if len(files) > 1:
            raise CheckpointError(
                f"{path} has several GGUF files: pass the path of one, such as {files[0]}."
            )
        return gguf.unpacked(files[0]) if files else path
    found = HUB_ID.fullmatch(name)
    if path.exists() or not found:
        raise CheckpointError(
            f"{name} is not a directory; pass one that holds {CONFIG} and {WEIGHTS}, "
            "or a model id of the Hugging Face Hub, such as google/flan-t5-small or "
            "google/flan-t5-small@main."
        )
    repository, revision, file = found.groups()
    import huggingface_hub

    try:
        if file is not None:
            download = huggingface_hub.hf_hub_download
            return gguf.unpacked(Path(download(repository, file, revision=revision)))
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=HUB_FILES
            )
        )
    except CheckpointError:
        raise
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
        check_whole(path)
        raise CheckpointError(
            f"{path} is truncated or corrupt, or cannot be read ({error}); "
            "copy or download it again."
        ) from None


def weight_files(directory: Path, task: str = "") -> dict[str, tuple[Path, str]]:
    """File that holds each tensor of a checkpoint, and the file's name of its dtype.

    Args:
      task: :func:`task_of` the model, for a message.
    """
    if (directory / WEIGHTS).exists():
        paths = [directory / WEIGHTS]
    elif (directory / INDEX).exists():
        weight_map = read_json(directory / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(
                f"{directory / INDEX} has no weight_map; copy or download the checkpoint again."
            )
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or not name or Path(name).name != name:
                raise CheckpointError(
                    f"{directory / INDEX} gives {tensor} the file {name!r}, which is no name of a "
                    "file in the checkpoint's directory; copy or download the checkpoint again."
                )
        paths = [directory / name for name in sorted(set(weight_map.values()))]
    else:
        raise CheckpointError(
            f"{directory} has neither {WEIGHTS} nor {INDEX}: copy or download them. Other weights, "
            f"such as pytorch_model.bin, transformers converts: AutoModel{task}.from_pretrained("
            f"{str(directory)!r}).save_pretrained(another_directory)."
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


def stored_array(
    path: Path, name: str, parameter: Parameter, dtype: np.dtype, scale: float
) -> StoredArray:
    """A tensor as T5X's tree has it, of which only what is asked for is read.

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
            mapped = _mapped(path, name, STORED_DTYPES[kind], shape)
            # Turning it is a view; so is a part of that, of which a copy is made.
            return np.array(part_of(parameter.turned(mapped), parts))

    return StoredArray(label, parameter.shape, dtype, load, scale)


def _mapped(path: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor in its file, of which pages are read when they are used.

    The ``safetensors`` package copies a tensor whole, and its slices follow the file's axes only.
    The file begins with the size of its header, 8 bytes, and the header, which is JSON.
    """
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
    if begin == end:  # Nothing can be mapped.
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset=8 + size + begin, shape=shape)


def write_weights(
    directory: Path, table: Mapping[str, Parameter], arrays: Mapping[str, Any], dtype: np.dtype,
    max_shard_bytes: int,
) -> None:  # fmt: skip
    """Writes the tensors, a shard at a time, in as few shards as their order allows.

    No shard is larger than ``max_shard_bytes``, unless a single tensor is. Several have an index.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {name: math.prod(table[name].shape) * dtype.itemsize for name in table}
    split = split_state_dict_into_shards_factory(
        sizes, get_storage_size=lambda size: size, filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )  # fmt: skip
    for filename, names in split.filename_to_tensors.items():
        tensors = {}
        for name in names:
            path = table[name].path
            tensor = cast(np.asarray(arrays[path]), dtype, f"params: {path}")
            tensors[name] = np.ascontiguousarray(table[name].turned(tensor))
        save_file(tensors, directory / filename, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(directory / INDEX, index)
