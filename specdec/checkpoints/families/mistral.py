"""Mistral in Hugging Face's files: ``MistralForCausalLM`` in transformers 5.

Its first version sees a window in every layer, later ones see all.
"""

from __future__ import annotations

from specdec.checkpoints.families import _rotary
from specdec.checkpoints.families._rotary import Kind
from specdec.checkpoints.families.base import Family
from specdec.models.rotary.config import RotaryConfig

KIND = Kind("MistralForCausalLM", layers="all")
NAMES = _rotary.decoder_names()
FAMILY = Family(
    model_types={"mistral": "7B and Nemo"},
    public={},
    shape=RotaryConfig,
    parse_config=lambda model_type, config, generation: _rotary.parse_decoder(
        KIND, config, generation
    ),
    fields=_rotary.MESSAGES,
    # Without windows it is a Llama, and is saved as such.
    model_type_of=lambda config: _rotary.decoder_type({"mistral": KIND}, config),
    format_config=lambda config, name: _rotary.format_decoder(config, KIND, name),
    names=lambda config: NAMES,
    open_parameters=lambda weights, config: _rotary.open_decoder(weights, config, NAMES),
)
