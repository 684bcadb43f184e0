"""Acceptance of a draft under training: a few rows are decoded with it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from specdec.checkpoints import architectures
from specdec.checkpoints.architectures import Config
from specdec.core.stats import RunStats
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.training import teacher_forcing
from specdec.training.batching import Batches
from specdec.training.validation import decode_rows
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

ROWS = 64
GAMMA = 3


def acceptance(
    target: Config, target_params: Any, draft: Config, validation: Batches
) -> Callable[[Any], dict[str, float]]:
    """Makes the measurement of a draft's parameters: 64 rows decoded at temperatures 0 and 1.

    They are those of the commonest shape of the validation batches, so that few programs are
    compiled.

    Returns:
      params -> ``alpha_t0`` and ``alpha_t1``, and ``tokens_a_block_t0`` and so on, of 3 guesses.
    """
    target_model, draft_model = (
        architectures.decode_model(dataclasses.replace(config, dtype="float32"))
        for config in (target, draft)
    )
    packed = target_model.pack(target_params)
    engine = Engine(target_model, ModelDrafter(draft_model, GAMMA), TokenVerifier())
    of_shape = defaultdict(list)
    for batch in validation.epoch(0):
        of_shape[batch.targets.shape].append(batch)
    batches = max(of_shape.values(), key=len)
    batches = batches[: -(-ROWS // len(batches[0].targets))]

    def measure(params: Any) -> dict[str, float]:
        weights, found = draft_model.pack(params), {}
        for temperature in (0.0, 1.0):
            sampling = SamplingConfig(temperature)
            drafter = DraftParams(weights, sampling.traced())
            given, counted = EngineParams(packed, sampling.traced(), drafter), []
            for inputs, targets in batches:
                ids = teacher_forcing.prompts(target, inputs, targets)
                length, numbers = targets.shape[1], range(len(ids))
                _, stats = decode_rows(engine, given, ids, numbers, inputs.shape, length)
                counted.append(stats)
            stats = RunStats.total(counted, len(counted), GAMMA)
            found[f"alpha_t{temperature:g}"] = stats.alpha or 0.0
            found[f"tokens_a_block_t{temperature:g}"] = stats.block_efficiency or 0.0
        return found

    return measure
