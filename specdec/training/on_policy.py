"""A draft's own outputs as its training data, decoded while it trains.

In decoding a draft continues its own guesses, so on its own outputs it meets the prefixes that it
will see (Zhou et al. 2023, DistillSpec; Agarwal et al. 2023, GKD). It learns from the target's
distribution in any case; the outputs decide at which prefixes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any

import jax
import numpy as np

from specdec.checkpoints import architectures
from specdec.checkpoints.architectures import Config
from specdec.core.fields import PositiveShare, Real, checked
from specdec.decoding.engine import Engine, EngineParams
from specdec.models.base import Model
from specdec.training import teacher_forcing
from specdec.training.batching import TokenBatch
from specdec.training.validation import decode_rows
from specdec.types import Encoded, Params, Prompt, SamplingConfig


@checked()
class OnPolicy:
    """Options for training data that the draft generates itself.

    Attributes:
      share: of the batches, in (0, 1]; a batch's outputs are all of one kind.
      temperature: of the draft's distribution; 0 takes the most probable token.
    """

    share: PositiveShare = 1.0
    temperature: Annotated[float, Real("a number of at least 0", 0)] = 1.0


def generator(
    draft: Config, options: OnPolicy, seed: int, target: tuple[Config, Any]
) -> Callable[[Any, Any, int], Any]:
    """Makes (draft's parameters, batch, step) -> the batch, or it with the draft's own outputs.

    Args:
      seed: chooses the steps, and the outputs.
      target: its config and parameters, for a draft that starts from its encoding.
    """
    config = dataclasses.replace(draft, dtype="float32")  # As it will be decoded.
    model, encode = architectures.decode_model(config), None
    if draft.encoding_width is not None:
        encoder = architectures.decode_model(dataclasses.replace(target[0], dtype="float32"))
        encode = functools.partial(_encoded, encoder, encoder.pack(target[1]))
    sampling = SamplingConfig(options.temperature)

    def generate(params: Any, batch: Any, step: int) -> Any:
        if np.random.default_rng([seed, step]).random() >= options.share:
            return batch
        (rows, length), length_in = batch.targets.shape, batch.inputs.shape[1]
        ids = teacher_forcing.prompts(config, batch.inputs, batch.targets)
        numbers = [step * rows + row for row in range(len(ids))]
        weights = EngineParams(model.pack(params), sampling.traced())
        outputs, _ = decode_rows(
            Engine(model), weights, ids, numbers, (rows, length_in), length, seed, encode
        )
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
