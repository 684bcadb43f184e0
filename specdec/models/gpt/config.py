"""GPT-2's settings by their own names."""

from __future__ import annotations

from specdec.models.transformer.config import (
    Absolute,
    Activation,
    Logits,
    Norm,
    Stack,
    TransformerConfig,
)


def GPTConfig(
    vocab_size: int, max_positions: int, d_model: int, num_layers: int, num_heads: int, d_ff: int,
    activation: Activation = "gelu", tied_logits: bool = True, layer_norm_epsilon: float = 1e-5,
    dropout_rate: float = 0.0, dtype: str = "float32", pad_id: int = 0, eos_id: int | None = 0,
    more_eos_ids: tuple[int, ...] = (), start_id: int = 0,
) -> TransformerConfig:  # fmt: skip
    """A GPT-2: learned positions, LayerNorm before each part, biases everywhere.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and OpenAI's
    gpt-2 code.
    """
    stack = Stack(
        d_model=d_model, num_layers=num_layers, num_heads=num_heads, d_ff=d_ff,
        head_dim=max(1, d_model // max(1, num_heads)), positions=Absolute(max_positions),
        norm=Norm("layer", layer_norm_epsilon), activation=activation, gated=False, biases="all",
    )  # fmt: skip
    return TransformerConfig(
        vocab_size=vocab_size, decoder=stack, logits=Logits(tied_logits), start_id=start_id,
        dropout_rate=dropout_rate, dtype=dtype, pad_id=pad_id, eos_id=eos_id,
        more_eos_ids=more_eos_ids,
    )  # fmt: skip
