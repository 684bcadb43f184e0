"""A target's distributions on a draft's training batches: computed once, used many times.

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
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specdec.core.files import written
from specdec.core.progress import Progress
from specdec.training.batching import Batches, TokenBatch

TOP = 32  # K.


class ScoredBatch(NamedTuple):
    """A :class:`TokenBatch` and the target's K most probable tokens at each of its positions."""

    inputs: np.ndarray  # [B, S]
    targets: np.ndarray  # [B, T]
    tokens: np.ndarray  # [B, T, K] int32
    probs: np.ndarray  # [B, T, K] float16, the target's own: they sum to a little less than 1.
    encoding: np.ndarray | None  # [B, S, W] float16, for a draft that starts from the target's.

    @property
    def log_probs(self) -> jax.Array:
        """Logarithms of ``probs``, float32; 0 counts as the smallest number of float16."""
        return jnp.log(jnp.maximum(self.probs.astype(jnp.float32), 2.0**-25))


def of_kept_tokens(batch: ScoredBatch | TokenBatch, values: jax.Array) -> jax.Array:
    """The part of ``values`` [B, T, V] beside the target's: of K tokens, or of all."""
    if isinstance(batch, ScoredBatch):
        return jnp.take_along_axis(values, jnp.asarray(batch.tokens), axis=-1)
    return values


class ScoredBatches:
    """``epochs`` of ``batches`` with the target's distributions, in another order every pass.

    Batch number ``step`` depends on nothing else. The target's distributions are kept in files in
    ``directory``, which a resumed run reads again.

    Args:
      score: (params, batch) -> the target's log probabilities, [B, T, V], and its encoding,
        [B, S, W], or None if the draft has no use for it.
      params: the target's.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        batches: Batches,
        epochs: int,
        score: Callable[[Any, TokenBatch], tuple[jax.Array, jax.Array | None]],
        params: Any,
    ):
        self._directory = Path(directory) / "scored"
        self._batches = [batch for epoch in range(epochs) for batch in batches.epoch(epoch)]

        @jax.jit
        def kept(params, batch):
            log_probs, encoding = score(params, batch)
            values, tokens = jax.lax.top_k(log_probs, TOP)
            found = {"tokens": tokens, "probs": jnp.exp(values).astype(jnp.float16)}
            return found if encoding is None else found | {"encoding": encoding.astype("float16")}

        done = [self._path(number).exists() for number in range(len(self._batches))]
        with Progress(len(done), "batches", done=sum(done)) as progress:
            progress.begin("The target scores")
            for number, batch in enumerate(self._batches):
                if not done[number]:
                    with written(self._path(number)) as partial:
                        save_file(jax.device_get(kept(params, batch)), partial)
                    progress.add(kind=batch.targets.shape)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.safetensors"

    def from_step(self, step: int) -> Iterator[ScoredBatch]:
        """Batches number ``step``, ``step + 1``, and so on without end.

        Raises:
          ValueError: a file in the directory is damaged.
        """
        count = len(self._batches)
        while True:
            order = np.random.default_rng(step // count).permutation(count)
            for number in order[step % count :]:
                yield self._scored(number)
                step += 1

    def _scored(self, number: int) -> ScoredBatch:
        path = self._path(number)
        try:
            found = load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is damaged ({error}). Remove it, and the target scores the batch again."
            ) from None
        batch = self._batches[number]
        return ScoredBatch(*batch, found["tokens"], found["probs"], found.get("encoding"))
