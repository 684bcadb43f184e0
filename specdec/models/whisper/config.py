"""Whisper's settings by their own names."""

from __future__ import annotations

from specdec.models.transformer.config import (
    Absolute,
    Activation,
    Logits,
    Norm,
    Stack,
    TransformerConfig,
)


def WhisperConfig(
    vocab_size: int, features: int, d_model: int, num_encoder_layers: int, num_decoder_layers: int,
    num_heads: int, d_ff: int, encoder_positions: int = 1500, decoder_positions: int = 448,
    activation: Activation = "gelu_exact", tied_logits: bool = True, dropout_rate: float = 0.0,
    dtype: str = "float32", pad_id: int = 50257, eos_id: int | None = 50257,
    more_eos_ids: tuple[int, ...] = (), decoder_start_id: int = 50258,
) -> TransformerConfig:  # fmt: skip
    """A Whisper or Distil-Whisper: an encoder of sound, and biases everywhere but for keys.

    Source: Radford et al. 2022 (Whisper), Gandhi et al. 2023 (Distil-Whisper), and their model in
    transformers 5.
    """
    sizes = {
        "encoder": (num_encoder_layers, encoder_positions),
        "decoder": (num_decoder_layers, decoder_positions),
    }  # fmt: skip
    stacks = {
        name: Stack(
            d_model=d_model, num_layers=num_layers, num_heads=num_heads, d_ff=d_ff, gated=False,
            head_dim=max(1, d_model // max(1, num_heads)), activation=activation,
            positions=Absolute(count), norm=Norm("layer", 1e-5, "before"), biases="not_keys",
        )
        for name, (num_layers, count) in sizes.items()
    }  # fmt: skip
    return TransformerConfig(
        vocab_size=vocab_size, encoder=stacks["encoder"], decoder=stacks["decoder"],
        features=features, logits=Logits(tied_logits), dropout_rate=dropout_rate, dtype=dtype,
        pad_id=pad_id, eos_id=eos_id, more_eos_ids=more_eos_ids, start_id=decoder_start_id,
    )  # fmt: skip
