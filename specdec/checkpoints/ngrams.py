"""N-gram tables as safetensors files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from specdec.checkpoints.hf_files import opened
from specdec.checkpoints.parameters import CheckpointError
from specdec.core.files import written
from specdec.drafters.ngram_tables import NgramTables, make_level

FILE_NAME = "ngrams.safetensors"
_FORMAT = "specdec n-gram tables 1"
# The arrays of a level, and what they may be stored as.
_LEVEL = {
    "contexts": ("U16", "I32"), "counts": ("I32",), "best": ("U16", "I32"),
    "successors": ("U16", "I32"), "weights": ("F32",),
}  # fmt: skip
_ROUNDING = 1e-6  # Of sums of float32 numbers that sum to 1.


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
      CheckpointError: there is no such file, it holds no n-gram tables, or is damaged: the message
        names what in it is not as it was written.
    """
    path = Path(path, FILE_NAME) if Path(path).is_dir() else Path(path)
    if not path.is_file():
        raise CheckpointError(f"No n-gram tables at {path}.")
    with opened(path) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise CheckpointError(f"{path} holds no n-gram tables.")
        names = file.keys()
        dtypes = {name: file.get_slice(name).get_dtype() for name in names}
        order = 1 + sum(name.endswith(".contexts") for name in dtypes)
        _check_header(path, metadata, order, dtypes)
        arrays = {name: file.get_tensor(name) for name in dtypes}
    levels = [{name: arrays[f"{m}.{name}"] for name in _LEVEL} for m in range(1, order)]
    _check_unigram(path, arrays["unigram"], arrays["best"])
    for m, level in enumerate(levels, start=1):
        _check_level(path, m, len(arrays["unigram"]), **level)
    best = jnp.asarray(arrays["best"], jnp.int32)
    made = tuple(make_level(**level) for level in levels)
    return NgramTables(jnp.asarray(arrays["unigram"]), best, made), metadata["vocabulary"]


def _require(valid: Any, path: Path, field: str, wanted: str) -> None:
    if not valid:
        raise CheckpointError(
            f"{path} is damaged: {field} must be {wanted}. Copy it again, or count it again "
            "(configs/training/quickstart_ngrams.gin)."
        )


def _check_header(
    path: Path, metadata: Mapping[str, str], order: int, dtypes: Mapping[str, str]
) -> None:
    """Names, dtypes and metadata, before anything else is read."""
    wanted = {"unigram": ("F32",), "best": ("I32",)}
    wanted |= {f"{m}.{name}": kinds for m in range(1, order) for name, kinds in _LEVEL.items()}
    _require(metadata.get("order") == str(order), path, "the metadata's order", f'"{order}"')
    _require("vocabulary" in metadata, path, "the metadata's vocabulary", "there")
    for name in sorted(wanted.keys() | dtypes.keys()):
        _require(name in wanted, path, f"the array {name}", f"left out in tables of order {order}")
        _require(name in dtypes, path, f"the array {name}", "there")
        kinds = " or ".join(wanted[name])
        _require(dtypes[name] in wanted[name], path, f"the array {name}", f"stored as {kinds}")


def _check_unigram(path: Path, unigram: np.ndarray, best: np.ndarray) -> None:
    _require(unigram.ndim == 1 and unigram.size, path, "unigram", "a row of probabilities")
    _require((unigram >= 0).all(), path, "unigram", "probabilities, none of them NaN or below 0")
    total = unigram.sum(dtype=np.float64)
    _require(abs(total - 1) < _ROUNDING, path, "unigram", f"of sum 1, not {total:g}")
    _require(best.shape == (), path, "best", "one token")
    _require(0 <= best < len(unigram), path, "best", f"a token below {len(unigram)}")


def _check_level(
    path: Path, m: int, vocab_size: int, contexts: np.ndarray, counts: np.ndarray,
    best: np.ndarray, successors: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    """Check all that :func:`make_level` and decoding rely on; each array is gone through once."""
    rows, size = len(contexts) if contexts.ndim else 0, successors.size

    def require(valid: Any, name: str, wanted: str) -> None:
        _require(valid, path, f"{m}.{name}", wanted)

    require(contexts.shape == (rows, m), "contexts", f"rows of {m} tokens")
    for name, array in (("counts", counts), ("best", best)):
        require(array.shape == (rows,), name, f"{rows} numbers, one for each context")
    for name, array in (("contexts", contexts), ("best", best), ("successors", successors)):
        valid = array.min(initial=0) >= 0 and array.max(initial=0) < vocab_size
        require(valid, name, f"tokens in 0..{vocab_size - 1}")
    require(counts.min(initial=1) >= 1, "counts", "at least 1 each")
    total = int(counts.sum(dtype=np.int64))
    for name, array in (("successors", successors), ("weights", weights)):
        require(array.shape == (total,), name, f"{total} numbers, as many as the counts add up to")
    # As they are written; so each context is there once, and each successor once behind it.
    ascending = np.zeros(max(rows - 1, 0), bool)
    for column in contexts.T[::-1]:
        ascending = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & ascending)
    require(ascending.all(), "contexts", "in ascending order, each there once")
    if size:
        begin = np.cumsum(counts) - counts
        ascending = successors[:-1] < successors[1:]
        ascending[begin[1:] - 1] = True
        require(ascending.all(), "successors", "in ascending order behind each context")
        require((weights >= 0).all(), "weights", "at least 0, none of them NaN")
        most = np.add.reduceat(weights, begin, dtype=np.float64).max()
        require(most < 1 + _ROUNDING, "weights", f"of sum 1 at most in a context, not {most:g}")
