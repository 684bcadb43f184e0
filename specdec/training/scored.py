"""A target's distributions on a draft's training batches: computed once, used many times.

The target's forward pass is most of what distilling a small draft costs. Its most probable tokens
say nearly all that the draft can learn from it, and are few enough to keep.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core.files import numpy_file, written
from specdec.core.progress import Progress
from specdec.training.batching import Batches, TokenBatch

# And what they hold.
_FILES = {"encoding": np.float16, "top_probs": np.float16, "top_tokens": np.int32}


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


class ScoredBatches:
    """``epochs`` of ``batches`` with the target's distributions, in another order every pass.

    Batch number ``step`` depends on nothing else. The target's distributions are kept in files in
    ``directory``, which a resumed run reads again.

    Args:
      score: (params, batch) -> the target's log probabilities, [B, T, V], and its encoding,
        [B, S, W], or None if the draft has no use for it.
      params: the target's.
      top: K.

    Raises:
      ValueError: a file in the directory is damaged, or of other batches.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        batches: Batches,
        epochs: int,
        score: Callable[[Any, TokenBatch], tuple[jax.Array, jax.Array | None]],
        params: Any,
        top: int,
    ):
        self._batches = [batch for epoch in range(epochs) for batch in batches.epoch(epoch)]
        # The rows of the files at which each batch begins: [batches + 1, (inputs, targets)].
        sizes = [(batch.inputs.size, batch.targets.size) for batch in self._batches]
        self._starts = np.cumsum([(0, 0), *sizes], axis=0)
        paths = {name: Path(directory) / f"{name}.npy" for name in _FILES}
        if not paths["top_tokens"].exists():  # It gets its name last.
            self._score(paths, score, params, top)
        count = len(self._batches)
        self._files = {
            name: _opened(path, self._rows(name, count - 1).stop, _FILES[name])
            for name, path in paths.items()
            if path.exists()
        }

    def _rows(self, name: str, number: int) -> slice:
        begin, end = self._starts[[number, number + 1], int(name != "encoding")]
        return slice(int(begin), int(end))

    def _score(self, paths: dict[str, Path], score: Callable, params: Any, top: int) -> None:
        @jax.jit
        def kept(params, batch):
            log_probs, encoding = score(params, batch)
            values, tokens = jax.lax.top_k(log_probs, top)
            found = {"top_probs": jnp.exp(values).astype(jnp.float16), "top_tokens": tokens}
            return found if encoding is None else {"encoding": encoding.astype("float16"), **found}

        shapes = jax.eval_shape(kept, params, self._batches[0])
        with contextlib.ExitStack() as stack, Progress(len(self._batches), "batches") as progress:
            progress.begin("The target scores")
            files = {}
            # The file that is opened first gets its name last.
            for name in reversed([name for name in _FILES if name in shapes]):
                partial = stack.enter_context(written(paths[name]))
                size = self._rows(name, len(self._batches) - 1).stop, shapes[name].shape[-1]
                files[name] = np.lib.format.open_memmap(partial, "w+", shapes[name].dtype, size)
                stack.callback(files[name].flush)
            for i, batch in enumerate(self._batches):
                for name, values in jax.device_get(kept(params, batch)).items():
                    files[name][self._rows(name, i)] = values.reshape(-1, values.shape[-1])
                progress.add(kind=batch.targets.shape)

    def from_step(self, step: int) -> Iterator[ScoredBatch]:
        """Batches number ``step``, ``step + 1``, and so on without end."""
        count = len(self._batches)
        while True:
            order = np.random.default_rng(step // count).permutation(count)
            for number in order[step % count :]:
                yield self._scored(number)
                step += 1

    def _scored(self, number: int) -> ScoredBatch:
        batch = self._batches[number]

        def read(name: str, side: np.ndarray) -> np.ndarray:
            return np.asarray(self._files[name][self._rows(name, number)]).reshape(*side.shape, -1)

        return ScoredBatch(
            *batch, read("top_tokens", batch.targets), read("top_probs", batch.targets),
            read("encoding", batch.inputs) if "encoding" in self._files else None,
        )  # fmt: skip


def _opened(path: Path, rows: int, dtype: type[np.generic]) -> np.ndarray:
    """A file's rows, in memory where they are read."""
    again = f"Remove {', '.join(_FILES)} there, and the target scores the batches again."
    with numpy_file(path, again):
        array = np.load(path, mmap_mode="r")
        if array.ndim != 2 or len(array) != rows or array.dtype != dtype:
            raise ValueError(
                f"it holds {array.dtype}{list(array.shape)}, not {rows} rows of {dtype.__name__}"
            )
    return array
