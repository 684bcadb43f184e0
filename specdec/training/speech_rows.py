"""Rows of speech as batches: what :func:`specdec.training.speech.write_rows` has written."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from safetensors import safe_open
from safetensors.numpy import load_file

from specdec.models.transformer.config import TransformerConfig
from specdec.models.transformer.model import TransformerModel
from specdec.training.batching import Batches, BatchingOptions, TokenPair
from specdec.training.teacher_forcing import decoder_inputs
from specdec.types import Encoded


class SpeechBatch(NamedTuple):
    """Rows of speech, which a frozen target has read. Spare rows are zeros and pads.

    Attributes:
      inputs: [B, S, D] float16, what the target's encoder made of windows.
      targets: [B, T] int32, tokens behind the start token, EOS, then pads.
      states: [B, T, D] float16, the target's last hidden state that each is drawn from.
      log_sums: [B, T] float32, log of the sum of exp of its logits there.
    """

    inputs: np.ndarray
    targets: np.ndarray
    states: np.ndarray
    log_sums: np.ndarray

    def as_read(
        self, model: TransformerModel, params: Any
    ) -> tuple[Int[Array, "b t"], Encoded, Float[Array, "b t d"]]:
        """The results of :func:`specdec.training.teacher_forcing.states_along` for these rows.

        Args:
          model, params: whose keys and values of the encoder's output are made.
        """
        output = jnp.asarray(self.inputs, jnp.float32)
        encoded = model.attended(params, output, jnp.ones(output.shape[:2], bool))
        fed = decoder_inputs(model.config, jnp.asarray(self.targets))
        return fed, encoded, jnp.asarray(self.states, jnp.float32)


@dataclasses.dataclass(frozen=True)
class SpeechRows:
    """A directory of rows, with a folder for each split."""

    directory: str

    def batches(
        self, split: Literal["train", "validation"], model: TransformerConfig,
        batching: BatchingOptions,
    ) -> SpeechBatches:  # fmt: skip
        """Batches of a split. The start token, which no output has, stands for pads."""
        assert model.eos_id is not None
        folder = Path(self.directory) / split
        return SpeechBatches(folder, batching, model.eos_id, model.start_id)

    def outputs(self, split: Literal["train", "validation"]) -> Iterator[list[int]]:
        """Tokens of each row: language, task and timestamps with them, and EOS."""
        for path in paths_of(Path(self.directory) / split):
            with safe_open(path, "numpy") as opened:
                yield opened.get_tensor("tokens").tolist()


def paths_of(folder: Path) -> list[Path]:
    """Files of a folder's rows, but for those left out, in the order of windows.

    Raises:
      FileNotFoundError: there are none.
    """
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: int(path.stem))
    paths = [path for path in paths if size_of(path)]
    if not paths:
        raise FileNotFoundError(f"{folder} holds no rows of speech: write them first.")
    return paths


def size_of(path: Path) -> int:
    """Tokens of a row's file."""
    with safe_open(path, "numpy") as opened:
        return opened.get_slice("tokens").get_shape()[0]


class SpeechBatches(Batches):
    """Batches of the rows in a folder; files are read when a batch is made.

    Args:
      folder: of :func:`write_rows`, one split.
      options: their lengths are (S, T), with the S of all windows.

    Raises:
      FileNotFoundError, ValueError: there are no rows, or one does not fit.
    """

    def __init__(self, folder: Path, options: BatchingOptions, eos_id: int, pad_id: int):
        self._paths, pairs = paths_of(folder), []
        for path in self._paths:
            with safe_open(path, "numpy") as opened:
                self._shape = opened.get_slice("encoding").get_shape()
                # EOS is among the tokens of a file.
                ids = opened.get_tensor("tokens")[:-1].tolist()
                pairs.append(TokenPair(range(self._shape[0]), ids))
        super().__init__(pairs, options, eos_id, pad_id, ())

    def fingerprint(self) -> str:
        crc = 0
        for path in self._paths:
            crc = zlib.crc32(load_file(path)["states"].tobytes(), crc)
        return f"{len(self._paths)} windows, crc32 {crc:08x}, {self._options}"

    def _assemble(self, shape: tuple[int, int], groups: list[np.ndarray]) -> SpeechBatch:
        rows, (size, width), length = self._options.rows(shape), self._shape, shape[1]
        batch = SpeechBatch(
            np.zeros((rows, size, width), np.float16),
            np.full((rows, length), self.pad_id, np.int32),
            np.zeros((rows, length, width), np.float16),
            np.zeros((rows, length), np.float32),
        )  # fmt: skip
        for row, (number,) in enumerate(groups):
            found = load_file(self._paths[number])
            count = len(found["tokens"])
            batch.inputs[row] = found["encoding"]
            batch.targets[row, :count] = found["tokens"]
            batch.states[row, :count] = found["states"]
            batch.log_sums[row, :count] = found["log_sums"]
        return batch
