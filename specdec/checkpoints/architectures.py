"""What a config describes: the middle of the library asks here and names no architecture.

T5 is the only one so far. Another one joins here, told apart by the class of its config.
"""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Int

from specdec.models.t5 import network as t5
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model, axis_sizes
from specdec.models.t5.share import DeviceShare, parameter_shapes

Config = T5Config
# Public checkpoints, by the start of their names on the Hugging Face Hub, and their shapes' files.
FAMILIES = {"t5-v1_1": "t5_1_1", "flan-t5": "t5_1_1", "t5": "t5_1_0"}


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


def count_parameters(config: Config) -> tuple[int, int]:
    """A model's parameters, and those that a decode step reads.

    Read are the decoder's and the logits', without the cross-attention's keys and values, which are
    computed once a text, and the embedding's few rows.
    """

    def size(tree: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    params = parameter_shapes(config)
    decoder = params["decoder"]
    layers = [decoder[f"layers_{i}"] for i in range(config.num_decoder_layers)]
    crosses = [layer["encoder_decoder_attention"] for layer in layers]
    once = [(cross["key"], cross["value"]) for cross in crosses]
    logits = params["token_embedder"] if config.tied_logits else ()
    return size(params), size(decoder) - size(once) + size(logits)


__all__ = [
    "FAMILIES",
    "Config",
    "DeviceShare",
    "axis_sizes",
    "config_of",
    "count_parameters",
    "decode_model",
    "decoder_inputs",
    "init_params",
    "network",
]
