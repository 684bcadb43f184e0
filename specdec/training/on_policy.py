"""A draft's own outputs as its training data, decoded while it trains.

In decoding a draft continues its own guesses, so on its own outputs it meets the prefixes that it
will see (Zhou et al. 2023, DistillSpec; Agarwal et al. 2023, GKD). It learns from the target's
distribution in any case; the outputs decide at which prefixes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import jax
import numpy as np

from specdec.checkpoints import architectures
from specdec.checkpoints.architectures import Config
from specdec.core.fields import ABOVE_0, Count, Real, checked
from specdec.core.files import numpy_file, written
from specdec.models.base import Model
from specdec.training import teacher_forcing
from specdec.training.acceptance import capacity
from specdec.training.batching import TokenBatch
from specdec.training.validation import decode_rows
from specdec.types import Encoded, Params, Prompt, SamplingConfig

DIRECTORY = "on_policy"


@checked()
class OnPolicy:
    """Options for training data that the draft generates itself.

    Attributes:
      share: of the batches, in (0, 1]; a batch's outputs are all of one kind.
      refresh_every: steps for which the draft decodes at once: the outputs of a step are those of
        a draft that is younger by fewer steps than this.
      temperature: of the draft's distribution; 0 takes the most probable token.
    """

    share: Annotated[float, Real("in (0, 1]", ABOVE_0, 1)] = 1.0
    refresh_every: Count = 50
    temperature: Annotated[float, Real("a number of at least 0", 0)] = 1.0


class Numbered(Protocol):
    """Batches of which number ``step`` depends on nothing else."""

    def from_step(self, step: int) -> Iterator[Any]:
        """Batches number ``step``, ``step + 1``, and so on."""
        ...


class OnPolicyBatches:
    """``batches`` of which a share has the draft's outputs instead of their own.

    Outputs are kept in ``directory``, so that a run that is stopped between two refreshes goes on
    with the same ones. Going on raises ValueError where they are damaged.

    Args:
      generate: (draft's parameters, batch, step) -> the same batch with the draft's outputs.
      seed: chooses the batches.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        batches: Numbered,
        options: OnPolicy,
        generate: Callable[[Any, TokenBatch, int], TokenBatch],
        seed: int,
    ):
        self._directory = Path(directory) / DIRECTORY
        self._batches, self._options = batches, options
        self._generate, self._seed = generate, seed

    def from_step(self, step: int, current: Callable[[], Any]) -> Iterator[Any]:
        """Batches number ``step`` and on; ``current()`` are the draft's parameters by then."""
        every = self._options.refresh_every
        while True:
            first = step - step % every
            batches = list(itertools.islice(self._batches.from_step(first), every))
            for number, batch in self._generated(first, batches, current).items():
                batches[number - first] = batch
            yield from batches[step - first :]
            step = first + every

    def _generated(
        self, first: int, batches: Sequence[Any], current: Callable[[], Any]
    ) -> dict[int, TokenBatch]:
        """Generated ones of ``batches``, by number; they begin at ``first``."""
        path = self._directory / f"{first}.npz"
        if not path.exists():
            params, arrays = current(), {}
            for number, batch in enumerate(batches, first):
                if np.random.default_rng([self._seed, number]).random() < self._options.share:
                    made = self._generate(params, TokenBatch(batch.inputs, batch.targets), number)
                    arrays |= {f"{side} {number}": ids for side, ids in made._asdict().items()}
            with written(path) as partial, open(partial, "wb") as file:
                np.savez(file, **arrays)
        again = "Remove it, and the draft decodes its batches again."
        with numpy_file(path, again) as file, np.load(file) as kept:
            numbers = [n for n in range(first, first + len(batches)) if f"inputs {n}" in kept]
            return {
                n: TokenBatch(*(kept[f"{side} {n}"] for side in TokenBatch._fields))
                for n in numbers
            }


def generator(
    draft: Config, options: OnPolicy, seed: int, target: tuple[Config, Any]
) -> Callable[[Any, TokenBatch, int], TokenBatch]:
    """A function that decodes batches with a draft's parameters.

    Args:
      target: its config and parameters, for a draft that starts from its encoding.
    """
    config = dataclasses.replace(draft, dtype="float32")  # As it will be decoded.
    model, encode = architectures.decode_model(config), None
    if draft.encoding_width is not None:
        encoder = architectures.decode_model(dataclasses.replace(target[0], dtype="float32"))
        encode = functools.partial(_encoded, encoder, encoder.pack(target[1]))
    sampling = SamplingConfig(options.temperature)

    def generate(params: Any, batch: TokenBatch, step: int) -> TokenBatch:
        (rows, length), length_in = batch.targets.shape, batch.inputs.shape[1]
        ids = teacher_forcing.prompts(config, batch.inputs, batch.targets)
        numbers = [step * rows + row for row in range(len(ids))]
        outputs = decode_rows(
            model, model.pack(params), ids, numbers, (rows, length_in), capacity(model, ids,
            length), seed, sampling, encode,
        )  # fmt: skip
        # An output that did not end has no EOS to learn; the loss compares what stands before it.
        made = TokenBatch(*(np.full_like(side, config.pad_id) for side in batch[:2]))
        for row, (text, output) in enumerate(zip(ids, outputs, strict=True)):
            pair = teacher_forcing.training_pair(config, text, output.tolist())
            for side, tokens in zip(made, pair, strict=True):
                side[row, : len(tokens)] = tokens[: side.shape[1]]
        return made

    return generate


@functools.partial(jax.jit, static_argnums=0)
def _encoded(encoder: Model, params: Params, prompt: Prompt) -> Encoded:
    return encoder.start(params, prompt, 1).encoded
