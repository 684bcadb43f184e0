"""What a config describes: the middle of the library asks here and names no architecture.

T5 is the only one so far. Another one joins here, told apart by the class of its config.
"""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Int

from specdec.models.t5 import network as t5
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model

Config = T5Config


def network(config: Config) -> t5.Transformer:
    """The linen module that is trained and scored on whole texts."""
    return t5.Transformer(config)


def decode_model(config: Config) -> T5Model:
    """The model that decodes what the network's parameters are packed to."""
    return T5Model(config)


def init_params(config: Config, key: Array) -> dict[str, Any]:
    """Random parameters of the network."""
    return t5.init_params(config, key)


def decoder_inputs(config: Config, targets: Int[jax.Array, "b t"]) -> Int[Array, "b t"]:
    """What the network's decoder reads to score ``targets``: the start token, then all but one."""
    return t5.shift_right(targets, config.decoder_start_id)


def config_of(fields: dict[str, Any]) -> Config:
    """A config as :func:`dataclasses.asdict` made it. Fields it lacks take their defaults."""
    return T5Config(**fields)
