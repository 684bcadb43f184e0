"""Checks of every format's parameters: names, shapes, finite values; and whole directories."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

import ml_dtypes  # Registers bfloat16 with numpy, which safetensors' numpy reader relies on.
import numpy as np

from specdec.core.checkpoint_files import CheckpointError
from specdec.core.files import written
from specdec.models.placing import Readable

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
Index = tuple[slice | int, ...] | EllipsisType


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArray(Readable):
    """A parameter still in its files; ``np.asarray`` and ``jnp.asarray`` read it each time."""

    label: str  # Checkpoint and name, for messages.
    shape: tuple[int, ...]
    dtype: np.dtype  # To read it in. (JAX asks for an attribute of this name before it reads.)
    load: Callable[..., np.ndarray]  # A part in the stored dtype, by indices as of part_of.
    scale: float = 1.0  # Multiplied in.

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)

    def __getitem__(self, part: tuple[slice, ...]) -> np.ndarray:
        return self.read(part)

    def read(self, *parts: Index) -> np.ndarray:
        """Reads a part of it, and of T5X's files no chunks but that part's.

        Raises:
          CheckpointError: its files are missing or damaged, of another shape than the checkpoint
            lists, quantized, or hold values that are not finite in ``dtype``.
        """
        array = cast(self.load(*parts), self.dtype, self.label)
        return array if self.scale == 1 else array * self.dtype.type(self.scale)

    def layer(self, axis: int, i: int) -> StoredArray:
        """One layer of several stacked along ``axis``."""
        load = functools.partial(self.load, (*[slice(None)] * axis, i))
        shape = self.shape[:axis] + self.shape[axis + 1 :]
        return dataclasses.replace(self, shape=shape, load=load)


def part_of(array: Any, parts: Iterable[Index]) -> Any:
    """A part of a part of ... the array, by indices."""
    return functools.reduce(operator.getitem, parts, array)


def as_dtype(name: str) -> np.dtype:
    """A dtype that weights can have; a CheckpointError names them if this is none."""
    if name not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}.")
    return np.dtype(DTYPES[name])


def read_as(stored: Any) -> np.dtype:
    """The dtype in which stored parameters are read where nothing else is asked for."""
    return np.dtype(stored) if stored in map(np.dtype, DTYPES.values()) else np.dtype(np.float32)


def cast(array: np.ndarray, dtype: np.dtype, label: str) -> np.ndarray:
    """The array in ``dtype``; a CheckpointError if it is not finite in it."""
    with np.errstate(over="ignore"):  # Overflow is reported below, by name.
        array = array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        raise CheckpointError(
            f"{label} holds NaN or infinite values in {dtype.name}; the weights are damaged, "
            "or need a dtype of wider range."
        )
    return array


def check_names(
    source: str | Path, required: Iterable[str], found: Iterable[str], together: str,
    optional: Iterable[str] = (),
) -> None:  # fmt: skip
    """Raises CheckpointError for the first parameter, by name, that is missing or unknown."""
    required, found = set(required), set(found)
    unknown = found - required - set(optional)
    for problem, names in (("is missing", required - found), ("has the unexpected", unknown)):
        if names:
            first, *others = sorted(names)
            more = f" and {len(others)} more" if others else ""
            raise CheckpointError(
                f"{source} {problem} parameter {first}{more}; check that {together} belong "
                "together."
            )


def check_parameters(
    source: str, expected: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Any],
    origin: str = "the config",
) -> None:  # fmt: skip
    """Raises CheckpointError unless the arrays are those expected, by path and shape.

    ``source``, what holds them, and ``origin``, what asks for the expected ones, are for messages.
    """
    check_names(source, expected, arrays, f"{origin} and the parameters")
    for path, shape in expected.items():
        found = tuple(np.shape(arrays[path]))
        if found != shape:
            raise CheckpointError(
                f"{source}: {path} has shape {found}, but {origin} asks for "
                f"{shape}; check that they belong together."
            )


@contextlib.contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """A directory to write into, which takes its name when all is written and vanishes otherwise.

    Raises:
      CheckpointError: there is something of that name already, other than an empty directory.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise CheckpointError(
            f"{directory} exists and is not an empty directory; remove it or choose another."
        )
    with written(directory) as partial:
        partial.mkdir()
        yield partial
