"""The models that a config describes: the middle of the library asks here and names none.

The class of a config says which architecture it is of (``specdec.checkpoints.families``).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax

from specdec.checkpoints.families import FAMILIES, family_of
from specdec.models.config import Config
from specdec.models.packed import Layout, PackedModel
from specdec.models.partitioning import Partitioning
from specdec.models.t5.config import T5Config

EncoderDecoder = T5Config  # The network that T5X has, and that learns together with its draft.


def network(config: Config) -> Any:
    """The linen module that is trained and scored on whole texts."""
    return family_of(config).network.Transformer(config)


def init_params(config: Config, key: jax.Array) -> dict:
    """Random parameters of the network."""
    return family_of(config).network.init_params(config, key)


def decode_model(
    config: Config, layout: Layout | None = None, partitioning: Partitioning | None = None
) -> PackedModel:
    """Model that decodes with the network's parameters once they are packed.

    Args:
      layout: None for the best one here.
    """
    options: dict[str, Any] = {"partitioning": partitioning} | (
        {"layout": layout} if layout else {}
    )
    return family_of(config).model(config, **options)


def config_of(fields: Mapping[str, Any]) -> Config:
    """The config with these fields, as ``dataclasses.asdict`` gives them."""
    for kind in FAMILIES:
        if set(fields) <= {each.name for each in dataclasses.fields(kind)}:
            return kind(**fields)
    raise TypeError(f"No architecture's config has all fields {', '.join(fields)}.")


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network, by its path in the tree."""
    return family_of(config).parameter_shapes(config)


def count_parameters(config: Config) -> tuple[int, int]:
    """A model's parameters, and those that a decode step reads.

    Read are the decoder's and the logits', without the cross-attention's keys and values, which are
    computed once a text, and the embedding's few rows.
    """
    parts = "decoder|token_embedder" if config.tied_logits else "decoder"
    read = re.compile(rf"({parts})/(?!.*encoder_decoder_attention/(key|value)/)")
    sizes = {path: math.prod(shape) for path, shape in parameter_shapes(config).items()}
    return sum(sizes.values()), sum(size for path, size in sizes.items() if read.match(path))
