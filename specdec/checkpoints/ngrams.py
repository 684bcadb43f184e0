"""N-gram tables as safetensors files."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from specdec.checkpoints.hf_files import opened
from specdec.checkpoints.parameters import CheckpointError
from specdec.core.files import written
from specdec.drafters.ngram_tables import NgramTables, make_level

FILE_NAME = "ngrams.safetensors"
_FORMAT = "specdec n-gram tables 1"
_LEVEL = ("contexts", "counts", "best", "successors", "weights")  # The arrays of a level.


def vocabulary_hash(path: str | os.PathLike) -> str:
    """Identifies a SentencePiece model file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def save_ngrams(
    path: str | os.PathLike, tables: NgramTables, vocabulary: str | os.PathLike | None
) -> None:
    """Writes tables, and which vocabulary they are of; the file appears when it is whole."""
    token = np.uint16 if len(tables.unigram) <= 1 << 16 else np.int32
    arrays = {"unigram": np.asarray(tables.unigram), "best": np.asarray(tables.best)}
    for m, level in enumerate(tables.levels, start=1):
        counts = np.asarray(level.count)
        used = np.flatnonzero(counts)  # The hash table is made again when it is read.
        used = used[np.argsort(np.asarray(level.begin)[used])]
        size = int(counts.sum())
        arrays |= {
            f"{m}.contexts": np.asarray(level.contexts)[used].astype(token),
            f"{m}.counts": counts[used].astype(np.int32),
            f"{m}.best": np.asarray(level.best)[used].astype(token),
            f"{m}.successors": np.asarray(level.successors)[:size].astype(token),
            f"{m}.weights": np.asarray(level.weights)[:size],
        }
    known = vocabulary_hash(vocabulary) if vocabulary else ""
    metadata = {"format": _FORMAT, "order": str(tables.order), "vocabulary": known}
    metadata["checksum"] = _checksum(arrays, metadata)
    with written(Path(path)) as partial:
        save_file(arrays, partial, metadata)


def load_ngrams(path: str | os.PathLike) -> tuple[NgramTables, str]:
    """The tables that :func:`save_ngrams` wrote, and their vocabulary's hash ("" without one).

    Raises:
      CheckpointError: there is no such file, it holds no n-gram tables, or it is damaged.
    """
    path = Path(path, FILE_NAME) if Path(path).is_dir() else Path(path)
    if not path.is_file():
        raise CheckpointError(f"No n-gram tables at {path}.")
    with opened(path) as file:
        metadata = dict(file.metadata() or {})
        if metadata.get("format") != _FORMAT:
            raise CheckpointError(f"{path} holds no n-gram tables.")
        names = file.keys()
        arrays = {name: file.get_tensor(name) for name in names}
    checksum = metadata.pop("checksum", None)
    again = "Copy it again, or count it again (configs/training/quickstart_ngrams.gin)."
    if checksum is not None and checksum != _checksum(arrays, metadata):
        raise CheckpointError(f"{path} is damaged: its checksum differs. {again}")
    try:  # Older files have no checksum.
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.all((array >= 0) & (array < np.inf)):
                raise ValueError(f"{name} must be at least 0, none infinite or NaN")
        made = tuple(
            make_level(**{name: arrays[f"{m}.{name}"] for name in _LEVEL})
            for m in range(1, int(metadata["order"]))
        )
        unigram, best, vocabulary = arrays["unigram"], arrays["best"], metadata["vocabulary"]
    except (KeyError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is damaged: {reason}. {again}") from None
    return NgramTables(jnp.asarray(unigram), jnp.asarray(best, jnp.int32), made), vocabulary


def _checksum(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """Eight hex digits of the metadata and of each array's name, type and content."""
    crc = zlib.crc32(repr(sorted(metadata.items())).encode())
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return f"{crc:08x}"
