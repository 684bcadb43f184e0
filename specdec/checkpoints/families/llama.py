"""Llama 2 and 3, Qwen 2, 2.5 and 3 in Hugging Face's files.

Source: in transformers 5 ``LlamaForCausalLM``, ``Qwen2ForCausalLM`` and
``Qwen3ForCausalLM``.
"""

from __future__ import annotations

from specdec.checkpoints.families._rotary import Kind, decoders

FAMILY = decoders(
    {
        "llama": Kind("LlamaForCausalLM", layers="none"),
        "qwen2": Kind("Qwen2ForCausalLM", biases="qkv"),
        "qwen3": Kind("Qwen3ForCausalLM", query_key_norms=True),
    },
    model_types={"llama": "2 and 3", "qwen2": "Qwen 2.5", "qwen3": ""},
    public={
        "Llama-3.1-SIZE*": "llama3_SIZE", "Llama-3.2-SIZE*": "llama3_SIZE",
        "Qwen2.5-SIZE*": "qwen2_5_SIZE", "Qwen3-SIZE*": "qwen3_SIZE",
    },
)  # fmt: skip
