"""Gemma 2 and 3 in Hugging Face's files.

Source: ``Gemma2ForCausalLM`` and ``Gemma3ForCausalLM`` in transformers 5.
"""

from __future__ import annotations

from specdec.checkpoints.families import _rotary
from specdec.checkpoints.families._rotary import Kind
from specdec.checkpoints.families.base import Family
from specdec.models.rotary.config import RotaryConfig

KINDS = {
    "gemma2": Kind("Gemma2ForCausalLM", gemma=True, capped=True),
    "gemma3_text": Kind("Gemma3ForCausalLM", gemma=True, query_key_norms=True, two_ropes=True),
}
NAMES = _rotary.decoder_names(
    {
        "pre_self_attention_layer_norm": "input_layernorm",
        "post_self_attention_layer_norm": "post_attention_layernorm",
        "pre_mlp_layer_norm": "pre_feedforward_layernorm",
        "post_mlp_layer_norm": "post_feedforward_layernorm",
    }
)
FAMILY = Family(
    model_types={"gemma2": "", "gemma3_text": "270M and 1B"},
    public={"gemma-2-SIZE*": "gemma2_SIZE", "gemma-3-SIZE*": "gemma3_SIZE"},
    shape=RotaryConfig,
    parse_config=lambda model_type, config, generation: _rotary.parse_decoder(
        KINDS[model_type], config, generation, scaled_embedding=True
    ),
    fields=_rotary.MESSAGES,
    model_type_of=lambda config: _rotary.decoder_type(KINDS, config),
    format_config=lambda config, name: _rotary.format_decoder(config, KINDS[name], name),
    names=lambda config: NAMES,
    open_parameters=lambda weights, config: _rotary.open_decoder(weights, config, NAMES),
)
