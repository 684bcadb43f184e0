"""What every format asks of parameters: names, shapes, finite values; and whole directories."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # Registers bfloat16 with numpy, which safetensors' numpy reader relies on.
import numpy as np

from specdec.checkpoints.errors import CheckpointError
from specdec.core.files import written

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def as_dtype(name: str) -> np.dtype:
    """A dtype that weights can have; a CheckpointError names them if this is none."""
    if name not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}.")
    return DTYPES[name]


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
    source: str | Path,
    required: Iterable[str],
    found: Iterable[str],
    advice: str,
    optional: Iterable[str] = (),
) -> None:
    """Raises CheckpointError for the first parameter, by name, that is missing or unknown."""
    required, found = set(required), set(found)
    for problem, names in (
        ("is missing", required - found),
        ("has the unexpected", found - required - set(optional)),
    ):
        if names:
            first, *others = sorted(names)
            more = f" and {len(others)} more" if others else ""
            raise CheckpointError(f"{source} {problem} parameter {first}{more}; {advice}.")


def check_parameters(
    source: str,
    expected: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Any],
    origin: str = "the config",
) -> None:
    """Raises CheckpointError unless the arrays are those expected, by path and shape.

    Args:
      source: what holds the arrays, for messages.
      expected: the shapes by path.
      arrays: anything with a shape, by path.
      origin: where the expectation is from, for messages.
    """
    advice = f"check that {origin} and the parameters belong together"
    check_names(source, expected, arrays, advice)
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
