"""N-gram tables as safetensors files."""

from __future__ import annotations

import hashlib
import os
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
    with written(Path(path)) as partial:
        save_file(arrays, partial, metadata)


def load_ngrams(path: str | os.PathLike) -> tuple[NgramTables, str]:
    """The tables that :func:`save_ngrams` wrote, and their vocabulary's hash ("" without one).

    Raises:
      CheckpointError: there is no such file, or it holds no n-gram tables.
    """
    path = Path(path, FILE_NAME) if Path(path).is_dir() else Path(path)
    if not path.is_file():
        raise CheckpointError(f"No n-gram tables at {path}.")
    with opened(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise CheckpointError(f"{path} holds no n-gram tables.")
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    names = ("contexts", "counts", "best", "successors", "weights")
    levels = tuple(
        make_level(**{name: arrays[f"{m}.{name}"] for name in names})
        for m in range(1, int(metadata["order"]))
    )
    best = jnp.asarray(arrays["best"], jnp.int32)
    return NgramTables(jnp.asarray(arrays["unigram"]), best, levels), metadata["vocabulary"]
