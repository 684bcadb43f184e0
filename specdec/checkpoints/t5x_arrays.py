"""Where a T5X checkpoint is, and its arrays, read when used.

Locations are strings: a local path, or gs://bucket/path, which TensorStore reads itself. It is
imported where it is used: a program that opens no T5X checkpoint need not wait for it.
"""

from __future__ import annotations

import dataclasses
import io
import os
import posixpath
import re
from types import EllipsisType
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.parameters import cast

_REMOTE = re.compile(r"gs://([^/]+)/?(.*)", re.DOTALL)

Index = tuple[slice | int, ...] | EllipsisType


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
    """What a directory holds; nothing if there is no such directory."""
    if is_remote(location):
        return {key.split("/")[0] for key in keys_in(kvstore(location), location)}
    return set(os.listdir(location)) if os.path.isdir(location) else set()


def keys_in(store: dict[str, Any], location: str) -> list[str]:
    """All keys of a TensorStore key-value store; ``location`` is for messages."""
    import tensorstore as ts

    try:
        return [key.decode() for key in ts.KvStore.open(store).result().list().result()]
    except Exception as error:  # Of many types, by the kind of what is wrong.
        raise CheckpointError(
            f"{location} cannot be listed ({reason(error)}); check that it is there, whole, and "
            "may be read."
        ) from None


def opened(location: str, name: str) -> BinaryIO:
    """A file to read."""
    if not is_remote(location):
        return open(os.path.join(location, name), "rb")
    import tensorstore as ts

    return io.BytesIO(ts.KvStore.open(kvstore(location)).result()[name])


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArray:
    """A parameter of a T5X checkpoint; ``np.asarray`` and ``jnp.asarray`` read it, each anew.

    Attributes:
      label: checkpoint and path, for messages.
      source: TensorStore's spec, or the array itself where msgpack holds it.
      stored_shape: the shape of ``source``.
      stored_dtype: the dtype of ``source``.
      dtype: to read it in.
      layer: (axis, index) of the one layer that it is, where ``source`` has several.
    """

    label: str
    source: dict[str, Any] | np.ndarray
    stored_shape: tuple[int, ...]
    stored_dtype: np.dtype
    dtype: np.dtype
    layer: tuple[int, int] | None = None

    def __post_init__(self):
        if not jnp.issubdtype(self.stored_dtype, jnp.floating):
            raise CheckpointError(
                f"{self.label} is stored as {self.stored_dtype}, not as floating point; "
                "checkpoints of T5X before version 3, and quantized ones, cannot be loaded."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; a layer's lacks the axis of layers."""
        axis = None if self.layer is None else self.layer[0]
        return tuple(size for i, size in enumerate(self.stored_shape) if i != axis)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(...), dtype)

    def read(self, index: Index) -> np.ndarray:
        """Reads a part of it, and no chunks of the files but that part's.

        Raises:
          CheckpointError: its files are missing or damaged, of another shape than the checkpoint
            lists, or hold values that are not finite in ``dtype``.
        """
        view: Index = ...
        if self.layer is not None:
            axis, i = self.layer
            view = (*[slice(None)] * axis, i)
        if isinstance(self.source, np.ndarray):
            part = self.source[view][index]
        else:
            part = self._read_files(self.source, view, index)
        return cast(part, self.dtype, self.label)

    def _read_files(self, spec: dict[str, Any], view: Index, index: Index) -> np.ndarray:
        import tensorstore as ts

        try:
            store = ts.open(spec, open=True, read=True).result()
            shape = tuple(store.shape)
            if shape == self.stored_shape:
                return store[view][index].read().result()
        except Exception as error:  # Of many types, by the kind of what is wrong.
            raise CheckpointError(
                f"{self.label} cannot be read: its files are missing, truncated or corrupt "
                f"({reason(error)}); copy or download the checkpoint again."
            ) from None
        raise CheckpointError(
            f"{self.label} has shape {shape} in its files, but the checkpoint lists "
            f"{self.stored_shape}; its files are another checkpoint's, copy it again."
        )


def array_spec(driver: str, store: dict[str, Any]) -> dict[str, Any]:
    """TensorStore's spec of an array ("zarr", "zarr3") that is read whole or not at all."""
    # A chunk that is not there would be read as zeros; T5X writes all of them.
    return {"driver": driver, "kvstore": store, "fill_missing_data_reads": False}


def reason(error: Exception) -> str:
    """TensorStore's message without the specs and source lines that follow it."""
    return str(error).split(" [")[0]
