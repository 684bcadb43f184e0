"""The files of a T5X checkpoint: msgpack, the TensorStore arrays beside it, Orbax.

Source: ``t5x/checkpoints.py`` for what is written where.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np
from flax import serialization
from flax.traverse_util import flatten_dict, unflatten_dict

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.parameters import cast
from specdec.checkpoints.t5x_arrays import (
    StoredArray,
    array_spec,
    keys_in,
    kvstore,
    names_in,
    opened,
    reason,
)

CHECKPOINT = "checkpoint"  # The msgpack file of a native checkpoint.
ORBAX_MARKS = {"_METADATA", "manifest.ocdbt"}
CHUNK_BYTES = 64 * 2**20


def read_msgpack(location: str, name: str, dtype: np.dtype) -> dict[str, StoredArray]:
    """The parameters of a native checkpoint, by path; the optimizer's state is passed over.

    Args:
      location: where the file is, and the arrays that it refers to, whatever store and folder they
        were written to.
      name: of the file.
      dtype: to read parameters in.

    Raises:
      CheckpointError: the file is damaged, or no T5X checkpoint.
    """
    source = f"{location}/{name}"
    try:
        with opened(location, name) as file:
            span = _target_span(msgpack.Unpacker(file, max_buffer_size=0))
            if span is not None:
                file.seek(span[0])
                tree = serialization.msgpack_restore(file.read(span[1] - span[0]))
    except (msgpack.UnpackException, ValueError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{source} is truncated, or no checkpoint that T5X wrote "
            f"({type(error).__name__}: {error}); copy or download it again."
        ) from None
    if span is None or not isinstance(tree, dict):
        raise CheckpointError(f"{source} holds no 'target': it is no checkpoint that T5X wrote.")

    def stored(path: str, leaf: Any) -> StoredArray:
        label = f"{location}: {path}"
        if isinstance(leaf, np.ndarray):
            return StoredArray(label, leaf, leaf.shape, leaf.dtype, dtype)
        try:  # TensorStore before 0.1.14 had the path beside the store, not in it.
            folder = leaf["kvstore"].get("path") or leaf["path"]
            metadata = leaf["metadata"]
            shape, kind = metadata["shape"], jnp.dtype(leaf.get("dtype") or metadata["dtype"])
            spec = array_spec(leaf["driver"], kvstore(location, folder.rstrip("/") + "/"))
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(
                f"{label} is neither an array nor the whole description of one in {source}; "
                "copy or download the checkpoint again."
            ) from None
        return StoredArray(label, spec, tuple(shape), kind, dtype)

    leaves = flatten_dict(tree, sep="/", is_leaf=lambda _, node: "kvstore" in node)
    return {path: stored(path, leaf) for path, leaf in leaves.items()}


def _target_span(unpacker: msgpack.Unpacker) -> tuple[int, int] | None:
    """Where the bytes of ``target`` begin and end, or None: skipped values are never built."""
    for _ in range(unpacker.read_map_header()):
        if (key := unpacker.unpack()) == "optimizer":  # Checkpoints of bare flax.optim lack it.
            return _target_span(unpacker)
        begin = unpacker.tell()
        unpacker.skip()
        if key == "target":
            return begin, unpacker.tell()
    return None


def read_orbax(location: str, dtype: np.dtype, tree: str = "") -> dict[str, StoredArray]:
    """The arrays of an Orbax checkpoint, by path; of other subtrees nothing is opened.

    Args:
      location: the directory with Orbax's metadata and arrays.
      dtype: to read parameters in.
      tree: the subtree to read, such as "target"; all if empty.

    Raises:
      CheckpointError: an array's metadata cannot be read.
    """
    import tensorstore as ts

    store = kvstore(location)
    if "manifest.ocdbt" in names_in(location):
        store = {"driver": "ocdbt", "base": store, "path": ""}
    pattern = re.compile((f"{tree}\\." if tree else "") + r"([^/]+)/(\.zarray|zarr\.json)")
    found = [match for key in keys_in(store, location) if (match := pattern.fullmatch(key))]
    specs = {}
    for match in found:
        folder, name = match[0][: match.start(2)], match[1].replace(".", "/")
        driver = "zarr" if match[2] == ".zarray" else "zarr3"
        specs[name] = array_spec(driver, store | {"path": store["path"] + folder})
    stores = {name: ts.open(spec, open=True, read=True) for name, spec in specs.items()}
    arrays = {}
    for name, spec in specs.items():
        label = f"{location}: {name}"
        try:
            array = stores[name].result()
        except Exception as error:  # Of many types, by the kind of what is wrong.
            raise CheckpointError(
                f"{label} cannot be opened ({reason(error)}); copy or download it again."
            ) from None
        shape, kind = tuple(array.shape), array.dtype.numpy_dtype
        arrays[name] = StoredArray(label, spec, shape, kind, dtype)
    return arrays


def write_arrays(
    directory: Path, arrays: dict[str, Any], dtype: np.dtype, step: int, label: str
) -> None:
    """Writes a version 3 checkpoint: an array after the other, then the msgpack file.

    Every parameter becomes a zarr array, as with T5X's partitioners, which know an axis for each.

    Args:
      directory: where.
      arrays: by path.
      dtype: of the stored weights.
      step: the training step, the only state beside the parameters.
      label: what the arrays are of, for messages.

    Raises:
      CheckpointError: a value is not finite in ``dtype``.
    """
    import tensorstore as ts

    target: dict[str, Any] = {}
    for path, array in arrays.items():
        array = cast(np.asarray(array), dtype, f"{label}: {path}")
        name = f"target.{path.replace('/', '.')}"
        spec = {
            "driver": "zarr",
            "dtype": dtype.name,
            "kvstore": kvstore(str(directory), f"{name}/"),
            "metadata": {
                "shape": array.shape,
                "chunks": chunk_shape(array.shape, CHUNK_BYTES // dtype.itemsize),
                "compressor": {"id": "gzip", "level": 1},
            },
        }
        store = ts.open(spec, create=True).result()
        store.write(array).result()
        # What a reader finds: the store is named as T5X's are, relative to the checkpoint.
        written = {key: store.spec().to_json()[key] for key in ("driver", "dtype", "metadata")}
        target[path] = written | {"kvstore": {"driver": "file", "path": name}}
    state = {"step": np.asarray(step, np.int32)}
    optimizer = {"target": unflatten_dict(target, sep="/"), "state": state}
    contents = serialization.msgpack_serialize({"version": 3, "optimizer": optimizer})
    (directory / CHECKPOINT).write_bytes(contents)


def chunk_shape(shape: tuple[int, ...], max_elements: int) -> list[int]:
    """T5X's chunks: the longest side is cut to its next smaller divisor until they are small."""
    chunk = list(shape)
    while math.prod(chunk) > max_elements:
        axis = int(np.argmax(chunk))
        chunk[axis] = next(n for n in range(chunk[axis] - 1, 0, -1) if shape[axis] % n == 0)
    return chunk
