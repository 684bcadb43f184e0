"""Gemma 2 and 3 in Hugging Face's files.

Source: ``Gemma2ForCausalLM`` and ``Gemma3ForCausalLM`` in transformers 5.
"""

from __future__ import annotations

from specdec.checkpoints.families._rotary import Kind, decoders

FAMILY = decoders(
    {
        "gemma2": Kind("Gemma2ForCausalLM", gemma=True, capped=True),
        "gemma3_text": Kind("Gemma3ForCausalLM", gemma=True, query_key_norms=True, two_ropes=True),
    },
    model_types={"gemma2": "", "gemma3_text": "270M and 1B"},
    public={"gemma-2-SIZE*": "gemma2_SIZE", "gemma-3-SIZE*": "gemma3_SIZE"},
    norms={
        "pre_self_attention_layer_norm": "input_layernorm",
        "post_self_attention_layer_norm": "post_attention_layernorm",
        "pre_mlp_layer_norm": "pre_feedforward_layernorm",
        "post_mlp_layer_norm": "post_feedforward_layernorm",
    },
)
