"""What a config describes: the middle of the library asks here and names no architecture.

T5 is the only one so far. Another one joins here, told apart by the class of its config.
"""

from __future__ import annotations

import math
import re

import jax
from jaxtyping import Array, Int

from specdec.checkpoints.hf_names import parameter_shapes
from specdec.models.t5 import network as t5
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.model import axis_sizes as axis_sizes
from specdec.models.t5.share import DeviceShare as DeviceShare
from specdec.models.t5.share import FewBits as FewBits

Config = T5Config
network = t5.Transformer  # The linen module of a config that is trained and scored on whole texts.
init_params = t5.init_params  # Random parameters of it, of a config and a key.
decode_model = T5Model  # Decodes what the network's parameters are packed to.
# Public checkpoints, by the start of their names on the Hugging Face Hub, and their shapes' files.
FAMILIES = {"t5-v1_1": "t5_1_1", "flan-t5": "t5_1_1", "t5": "t5_1_0"}


def decoder_inputs(config: Config, targets: Int[jax.Array, "b t"]) -> Int[Array, "b t"]:
    """What the network's decoder reads to score ``targets``: the start token, then all but one."""
    return t5.shift_right(targets, config.decoder_start_id)


def count_parameters(config: Config) -> tuple[int, int]:
    """A model's parameters, and those that a decode step reads.

    Read are the decoder's and the logits', without the cross-attention's keys and values, which are
    computed once a text, and the embedding's few rows.
    """
    parts = "decoder|token_embedder" if config.tied_logits else "decoder"
    read = re.compile(rf"({parts})/(?!.*encoder_decoder_attention/(key|value)/)")
    sizes = {path: math.prod(shape) for path, shape in parameter_shapes(config).items()}
    return sum(sizes.values()), sum(size for path, size in sizes.items() if read.match(path))
