"""A target's distributions on a draft's training batches: computed once, gone through many times.

The target's forward pass is most of what distilling a small draft costs. Its most probable tokens
say nearly all that the draft can learn from it, and are few enough to keep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from specdec.data.batching import Batch, Batches

_LOG_EVERY = 200  # Batches.


class ScoredBatch(NamedTuple):
    """A batch and the target's K most probable tokens at each of its positions.

    Attributes:
      inputs, targets: [B, S] and [B, T], as in :class:`specdec.data.batching.Batch`.
      tokens: [B, T, K] int32.
      probs: [B, T, K] float16, the target's own: they sum to a little less than 1.
    """

    inputs: np.ndarray
    targets: np.ndarray
    tokens: np.ndarray
    probs: np.ndarray


class ScoredBatches:
    """``epochs`` of ``batches`` with the target's distributions, in another order every pass.

    Batch number ``step`` depends on nothing else. The distributions are kept in two files in
    ``directory``, which a resumed run reads again.

    Args:
      log_probs: (params, batch) -> the target's log probabilities, [B, T, V].
      params: the target's.
      top: K.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        batches: Batches,
        epochs: int,
        log_probs: Callable[[Any, Batch], jax.Array],
        params: Any,
        top: int,
    ):
        self._batches = [batch for epoch in range(epochs) for batch in batches.epoch(epoch)]
        sizes = [batch.targets.size for batch in self._batches]
        self._starts = np.cumsum([0, *sizes])
        shape = (int(self._starts[-1]), top)
        tokens, probs = (Path(directory) / name for name in ("top_tokens.npy", "top_probs.npy"))
        if not (tokens.exists() and probs.exists()):
            self._score(tokens, probs, shape, log_probs, params)
        self._tokens, self._probs = np.load(tokens, mmap_mode="r"), np.load(probs, mmap_mode="r")

    def _score(self, tokens: Path, probs: Path, shape, log_probs, params) -> None:
        @jax.jit
        def most_probable(params, batch):
            values, indices = jax.lax.top_k(log_probs(params, batch), shape[1])
            return indices, jnp.exp(values)

        parts = [path.with_suffix(".partial") for path in (tokens, probs)]
        files = [
            np.lib.format.open_memmap(part, "w+", dtype, shape)
            for part, dtype in zip(parts, (np.int32, np.float16), strict=True)
        ]
        for i, batch in enumerate(self._batches):
            for file, values in zip(
                files, jax.device_get(most_probable(params, batch)), strict=True
            ):
                file[self._starts[i] : self._starts[i + 1]] = values.reshape(-1, shape[1])
            if (i + 1) % _LOG_EVERY == 0:
                logging.info("The target scored %d of %d batches.", i + 1, len(self._batches))
        for file, part, path in zip(files, parts, (tokens, probs), strict=True):
            file.flush()
            part.rename(path)

    def from_step(self, step: int) -> Iterator[ScoredBatch]:
        """Batches number ``step``, ``step + 1``, and so on without end."""
        count = len(self._batches)
        while True:
            order = np.random.default_rng(step // count).permutation(count)
            for number in order[step % count :]:
                yield self._scored(number)
                step += 1

    def _scored(self, number: int) -> ScoredBatch:
        batch, start = self._batches[number], self._starts[number]
        rows = slice(start, start + batch.targets.size)
        shape = (*batch.targets.shape, -1)
        return ScoredBatch(
            *batch, np.asarray(self._tokens[rows]).reshape(shape),
            np.asarray(self._probs[rows]).reshape(shape),
        )  # fmt: skip
