"""The files of a T5X checkpoint: msgpack, the TensorStore arrays beside it, Orbax.

Locations are strings: a local path, or gs://bucket/path, which TensorStore reads itself. It and
Flax are imported where they are used: a program that opens no T5X checkpoint need not wait for
them.

Source: ``t5x/checkpoints.py`` for what is written where.
"""

from __future__ import annotations

import json
import math
import operator
import os
import posixpath
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.parameters import (
    CheckpointError,
    Index,
    StoredArray,
    cast,
    part_of,
    read_as,
)
from specdec.core.nested import nested

if TYPE_CHECKING:
    import tensorstore as ts

CHECKPOINT = "checkpoint"  # The msgpack file of a native checkpoint.
ORBAX_MARKS = {"_METADATA", "manifest.ocdbt"}
CHUNK_BYTES = 64 * 2**20
_REMOTE = re.compile(r"gs://([^/]+)/?(.*)", re.DOTALL)


def is_remote(location: str) -> bool:
    """Whether a location is in Google Cloud Storage."""
    return location.startswith("gs://")


def kvstore(location: str, path: str = "") -> dict[str, Any]:
    """TensorStore's spec of a directory (``path`` empty or ending in "/") or of a file in one."""
    if match := _REMOTE.fullmatch(location):
        bucket, folder = match.groups()
        return {"driver": "gcs", "bucket": bucket, "path": posixpath.join(folder, path)}
    return {"driver": "file", "path": os.path.join(os.path.abspath(location), path)}


def names_in(location: str) -> set[str]:
    """Names in a directory; empty if there is no such directory."""
    if is_remote(location):
        return {key.split("/")[0] for key in _keys_in(kvstore(location), location)}
    return set(os.listdir(location)) if os.path.isdir(location) else set()


def reason(error: Exception) -> str:
    """An error's message in one short line, without TensorStore's specs and source lines."""
    return textwrap.shorten(str(error).split(" [")[0], 300)


def content_of(location: str, name: str) -> bytes | None:
    """A file's bytes; None where a directory has none of that name.

    Raises:
      CheckpointError: it cannot be read.
    """
    import tensorstore as ts

    try:
        found = ts.KvStore.open(kvstore(location)).result().read(name).result()
    except Exception as error:  # Its type depends on the fault.
        raise CheckpointError(f"{location}/{name} cannot be read ({reason(error)}).") from None
    return found.value if found.state == "value" else None


def read_msgpack(location: str, name: str, dtype: np.dtype | None) -> dict[str, StoredArray]:
    """The parameters of a native checkpoint, by path; the optimizer's state is passed over.

    The file ``name`` is in ``location``, and so are the arrays that it refers to, whatever store
    and folder they were written to. ``dtype`` is what parameters are read in; None for each as it
    is stored.

    Raises:
      CheckpointError: the file is damaged, or no T5X checkpoint.
    """
    from flax.serialization import msgpack_restore
    from flax.traverse_util import flatten_dict

    source = f"{location}/{name}"
    try:
        tree: Any = msgpack_restore(content_of(location, name) or b"")
        tree = tree.get("optimizer", tree)["target"]  # Bare flax.optim's have no "optimizer".
        leaves = flatten_dict(tree, sep="/", is_leaf=lambda _, node: "kvstore" in node)
    except CheckpointError:
        raise
    except Exception as error:  # Its type depends on the fault.
        raise CheckpointError(
            f"{source} is truncated, or no checkpoint that T5X wrote "
            f"({type(error).__name__}: {reason(error)}); copy or download it again."
        ) from None

    def stored(path: str, leaf: Any) -> StoredArray:
        if not path.isprintable():
            raise CheckpointError(f"{source} is damaged: it names a parameter {path!r}.")
        label = f"{location}: {path}"
        if isinstance(leaf, np.ndarray):
            return _stored(label, leaf, leaf.shape, leaf.dtype, dtype)
        try:  # TensorStore before 0.1.14 had the path beside the store, not in it.
            folder = leaf["kvstore"].get("path") or leaf["path"]
            metadata = leaf["metadata"]
            shape = tuple(map(operator.index, metadata["shape"]))
            kind = jnp.dtype(leaf.get("dtype") or metadata["dtype"])
            spec = _spec(leaf["driver"], kvstore(location, folder.rstrip("/") + "/"))
        except Exception:  # As many as there are types that a value can have.
            raise CheckpointError(
                f"{label} is neither an array nor the whole description of one in {source}; "
                "copy or download the checkpoint again."
            ) from None
        return _stored(label, spec, shape, kind, dtype)

    return {path: stored(path, leaf) for path, leaf in leaves.items()}


def read_orbax(location: str, dtype: np.dtype | None, tree: str = "") -> dict[str, StoredArray]:
    """The arrays of an Orbax checkpoint, by path; of other subtrees nothing is opened.

    ``tree`` is the subtree to read, such as "target", or empty for all; ``dtype`` what parameters
    are read in, None for each as it is stored.

    Raises:
      CheckpointError: an array's metadata cannot be read.
    """
    store = kvstore(location)
    if "manifest.ocdbt" in names_in(location):
        store = {"driver": "ocdbt", "base": store, "path": ""}
    pattern = re.compile((f"{tree}\\." if tree else "") + r"([^/]+)/(\.zarray|zarr\.json)")
    specs = {}
    for match in filter(None, map(pattern.fullmatch, _keys_in(store, location))):
        folder, driver = match[0][: match.start(2)], "zarr" if match[2] == ".zarray" else "zarr3"
        specs[match[1].replace(".", "/")] = _spec(driver, store | {"path": store["path"] + folder})
    arrays = {}
    for name, spec in specs.items():
        label = f"{location}: {name}"
        try:
            array = _opened(spec)
            shape, kind = tuple(array.shape), array.dtype.numpy_dtype
        except Exception as error:  # Its type depends on the fault.
            raise CheckpointError(
                f"{label} cannot be opened ({reason(error)}); copy or download it again."
            ) from None
        arrays[name] = _stored(label, spec, shape, kind, dtype)
    return arrays


def write_arrays(
    directory: Path, arrays: dict[str, Any], dtype: np.dtype, step: int, label: str
) -> None:
    """Writes a version 3 checkpoint: an array after the other, then the msgpack file.

    Every parameter becomes a zarr array, as with T5X's partitioners, which know an axis for each.

    The training step is the only state beside the parameters. ``arrays`` are by path; ``label``
    names them in messages.

    Raises:
      CheckpointError: a value is not finite in ``dtype``.
    """
    import tensorstore as ts
    from flax.serialization import msgpack_serialize

    target: dict[str, Any] = {}
    for path, array in arrays.items():
        array = cast(np.asarray(array), dtype, f"{label}: {path}")
        name = f"target.{path.replace('/', '.')}"
        metadata = {
            "shape": array.shape,
            "chunks": chunk_shape(array.shape, CHUNK_BYTES // dtype.itemsize),
            "compressor": {"id": "gzip", "level": 1},
        }
        place = kvstore(str(directory), f"{name}/")
        spec = {"driver": "zarr", "dtype": dtype.name, "kvstore": place, "metadata": metadata}
        store = ts.open(spec, create=True).result()
        store.write(array).result()
        # Names that a reader finds: the store is named as T5X's are, relative to the checkpoint.
        written = {key: store.spec().to_json()[key] for key in ("driver", "dtype", "metadata")}
        target[path] = written | {"kvstore": {"driver": "file", "path": name}}
    state = {"step": np.asarray(step, np.int32)}
    optimizer = {"target": nested(target), "state": state}
    contents = msgpack_serialize({"version": 3, "optimizer": optimizer})
    (directory / CHECKPOINT).write_bytes(contents)


def chunk_shape(shape: tuple[int, ...], max_elements: int) -> list[int]:
    """T5X's chunks: the longest side is cut to its next smaller divisor until they are small."""
    chunk = list(shape)
    while math.prod(chunk) > max_elements:
        axis = int(np.argmax(chunk))
        chunk[axis] = next(n for n in range(chunk[axis] - 1, 0, -1) if shape[axis] % n == 0)
    return chunk


def _stored(
    label: str, source: Any, shape: tuple[int, ...], kind: np.dtype, dtype: np.dtype | None
) -> StoredArray:
    """A parameter of dtype ``kind``: TensorStore's spec of it, or the array itself."""
    if not jnp.issubdtype(kind, jnp.floating):
        raise CheckpointError(
            f"{label} is stored as {kind}, not as floating point; "
            "checkpoints of T5X before version 3, and quantized ones, cannot be loaded."
        )
    listed = f"{kind.name} {shape}"

    def load(*parts: Index) -> np.ndarray:
        if isinstance(source, np.ndarray):
            return part_of(source, parts)
        try:
            store = _opened(source)
            found = f"{store.dtype.name} {tuple(store.shape)}"
            if found == listed:
                part = part_of(store, parts)
                # TensorStore ends the process where memory does not suffice. numpy raises an error.
                for shape in (part.shape, store.chunk_layout.read_chunk_template.shape):
                    np.empty(shape, kind)
                return part.read().result()
        except Exception as error:  # Its type depends on the fault.
            raise CheckpointError(
                f"{label} cannot be read: its files are missing, truncated or corrupt "
                f"({reason(error)}); copy or download the checkpoint again."
            ) from None
        raise CheckpointError(
            f"{label} is {found} in its files, but the checkpoint lists {listed}; its files "
            "are another checkpoint's, copy it again."
        )

    return StoredArray(label, shape, dtype or read_as(kind), load)


def _spec(driver: str, store: dict[str, Any]) -> dict[str, Any]:
    """TensorStore's spec of an array ("zarr", "zarr3") that is read whole or not at all."""
    # A chunk that is not there would be read as zeros; T5X writes all of them.
    return {"driver": driver, "kvstore": store, "fill_missing_data_reads": False}


def _opened(spec: dict[str, Any]) -> ts.TensorStore:
    """The array that TensorStore's ``spec`` and the file with its metadata describe."""
    import tensorstore as ts

    file = {"zarr": ".zarray", "zarr3": "zarr.json"}[spec["driver"]]
    content = ts.KvStore.open(spec["kvstore"]).result()[file]
    # TensorStore reads JSON too, but ends the process where values are nested very deep.
    spec = spec | {"metadata": json.loads(content)}
    return ts.open(spec, open=True, read=True, assume_metadata=True).result()


def _keys_in(store: dict[str, Any], location: str) -> list[str]:
    """All keys of a TensorStore key-value store; ``location`` is for messages."""
    import tensorstore as ts

    try:
        return [key.decode() for key in ts.KvStore.open(store).result().list().result()]
    except Exception as error:  # Its type depends on the fault.
        raise CheckpointError(
            f"{location} cannot be listed ({reason(error)}); check that it is there, whole, and "
            "may be read."
        ) from None
