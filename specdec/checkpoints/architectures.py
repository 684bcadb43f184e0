"""The models that a config describes, and what is known of them without weights."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from specdec.checkpoints.families import FAMILIES
from specdec.core.platforms import Layout
from specdec.models.partitioning import Partitioning
from specdec.models.transformer.config import Relative, TransformerConfig
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.tree import parameter_shapes

if TYPE_CHECKING:
    from specdec.models.transformer.network import Transformer

__all__ = [
    "Config", "config_of", "count_parameters", "decode_model", "init_params", "is_t5", "network",
    "parameter_shapes",
]  # fmt: skip
Config = TransformerConfig


def network(config: Config) -> Transformer:
    """The linen module that is trained and scored on whole texts."""
    # Flax takes long to import, and decoding does without it.
    from specdec.models.transformer.network import Transformer

    return Transformer(config)


def init_params(config: Config, key: jax.Array) -> dict:
    """:func:`specdec.models.transformer.network.init_params`."""
    from specdec.models.transformer import network

    return network.init_params(config, key)


def decode_model(
    config: Config, layout: Layout | None = None, partitioning: Partitioning | None = None
) -> TransformerModel:
    """Model that decodes with the network's parameters once they are packed.

    Args:
      layout: None for the best one here.
    """
    if layout is None:
        return TransformerModel(config, partitioning=partitioning)
    return TransformerModel(config, layout, partitioning)


def is_t5(config: Config) -> bool:
    """Whether it is the network that T5X has, and that learns together with its draft."""
    return isinstance(config.decoder.positions, Relative)


def config_of(fields: Mapping[str, Any]) -> Config:
    """The config with these fields, as ``dataclasses.asdict`` gives them.

    Runs of older versions have the settings of one of the families' own functions.

    Raises:
      TypeError: fields are missing, or some are no config's.
      ValueError: a value is out of range.
    """
    if "decoder" in fields:
        return Config(**fields)
    for family in FAMILIES:
        with contextlib.suppress(TypeError):  # They are another family's.
            return family.shape(**fields)
    raise TypeError(f"No network has all fields {', '.join(fields)}.")


def count_parameters(config: Config) -> tuple[int, int]:
    """A model's parameters, and those that a decode step reads.

    Read are the decoder's and the logits', without the cross-attention's keys and values, which are
    computed once a text, and the embedding's few rows.
    """
    parts = "decoder|token_embedder" if config.tied_logits else "decoder"
    read = re.compile(rf"({parts})/(?!.*encoder_decoder_attention/(key|value)/)")
    sizes = {path: math.prod(shape) for path, shape in parameter_shapes(config).items()}
    return sum(sizes.values()), sum(size for path, size in sizes.items() if read.match(path))
