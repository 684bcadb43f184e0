"""Mistral in Hugging Face's files: ``MistralForCausalLM`` in transformers 5.

Its first version sees a window in every layer, later ones see all. Without windows it is a Llama,
and is saved as such.
"""

from __future__ import annotations

from specdec.checkpoints.families._rotary import Kind, decoders

FAMILY = decoders(
    {"mistral": Kind("MistralForCausalLM", layers="all")},
    model_types={"mistral": "7B and Nemo"},
    public={},
)
