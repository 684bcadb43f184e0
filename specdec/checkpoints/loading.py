"""Checkpoints as models that are ready to decode."""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary
from specdec.checkpoints.formats import open_checkpoint
from specdec.models.partitioning import Partitioning, place
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model, best_layout
from specdec.models.t5.packing import PackedT5
from specdec.types import Params

BUNDLED = ("quickstart",)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its packed parameters and where it came from."""

    model: T5Model
    params: PackedT5
    source: str

    @classmethod
    def of(
        cls,
        config: T5Config,
        params: Params,
        source: str,
        kernel_dtype: str | None = None,
        partitioning: Partitioning | None = None,
        output_tokens: Sequence[int] | None = None,
    ) -> LoadedModel:
        """Packs a checkpoint tree for decoding, on one device or as ``partitioning`` says.

        Kernels too large for ``kernel_dtype`` (see :class:`specdec.models.t5.model.T5Model`) are
        stored in ``config.dtype`` after all.
        """
        layout = best_layout() if partitioning is None else "in_out"
        model = T5Model(config, layout, kernel_dtype, partitioning)
        packed = model.pack(params, output_tokens)
        if kernel_dtype and not all(jnp.isfinite(a).all() for a in jax.tree.leaves(packed)):
            return cls.of(config, params, source, None, partitioning, output_tokens)
        return cls(model, packed, source)

    def check_batch_size(self, batch_size: int) -> None:
        """Raises ValueError for a batch that the mesh cannot cut into equal parts."""
        if self.model.partitioning is not None:
            self.model.partitioning.check_batch_size(batch_size)

    def place_rows(self, *arrays: np.ndarray) -> tuple[jax.Array, ...]:
        """Arrays [B, ...] on the devices that decode these rows.

        Raises:
          ValueError: see :meth:`check_batch_size`.
        """
        self.check_batch_size(len(arrays[0]))
        return tuple(place(array, ("batch",), self.model.partitioning) for array in arrays)


def checkpoint(folder: str, name: str) -> str:
    """A checkpoint in a folder of them, or of an organisation on the Hugging Face Hub."""
    return f"{folder}/{name}"


def resolve(source: str | os.PathLike, role: Literal["target", "draft"]) -> str:
    """A bundled model's directory; anything else as it is.

    Args:
      source: "quickstart" is its target or draft, as ``role`` says; "quickstart/target" and
        "quickstart/draft" name one.
    """
    name, _, model = os.fspath(source).partition("/")
    if name not in BUNDLED:
        return os.fspath(source)
    return str(importlib.resources.files("specdec") / "bundled" / name / (model or role))


def draft_kernel_dtype(dtype: str) -> str | None:
    """What a draft's decoder is stored in on this backend; see :func:`specdec.load_pair`."""
    return "float16" if dtype == "float32" and jax.default_backend() == "cpu" else None


def load_model(
    source: str,
    dtype: str,
    kernel_dtype: str | None = None,
    partitioning: Partitioning | None = None,
    *,
    as_draft: bool = False,
) -> LoadedModel:
    """Loads a checkpoint, a parameter at a time: little more memory than the result's.

    Args:
      source: a directory of Hugging Face's or T5X's, gs://bucket/path of T5X's, or a hub id.
      dtype: of weights, activations and cache.
      kernel_dtype, partitioning: see :class:`specdec.models.t5.model.T5Model`.
      as_draft: it may say the tokens of its draft vocabulary only, where it has one beside it; on
        a mesh it says all.

    Raises:
      CheckpointError: it cannot be read.
      ValueError: the mesh does not divide the model.
    """
    config, params = open_checkpoint(source, dtype)
    config = dataclasses.replace(config, dtype=dtype)
    said = None
    if as_draft and partitioning is None:
        said = load_draft_vocabulary(source, config.vocab_size)
    return LoadedModel.of(config, params, source, kernel_dtype, partitioning, said)
