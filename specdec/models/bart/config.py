"""BART's and its kin's settings by their own names."""

from __future__ import annotations

from typing import Literal

from specdec.models.transformer.config import (
    Absolute,
    Activation,
    Logits,
    Norm,
    Stack,
    TransformerConfig,
)


def BartConfig(
    vocab_size: int, max_positions: int, d_model: int, num_encoder_layers: int,
    num_decoder_layers: int, num_heads: int, d_ff: int,
    positions: Literal["learned", "sinusoidal", "tensor2tensor"] = "learned",
    position_offset: int = 2, pre_norm: bool = False, embedding_norm: bool = True,
    scaled_embedding: bool = False, activation: Activation = "gelu_exact", logits_bias: bool = True,
    tied_logits: bool = True, encoder_vocab_size: int | None = None, dropout_rate: float = 0.0,
    dtype: str = "float32", pad_id: int = 1, eos_id: int | None = 2,
    more_eos_ids: tuple[int, ...] = (), decoder_start_id: int = 2,
) -> TransformerConfig:  # fmt: skip
    """A BART, mBART, M2M100 (NLLB), Marian or Pegasus: LayerNorm, and biases everywhere.

    Source: Lewis et al. 2020 (BART), Liu et al. 2020 (mBART), Fan et al. 2021 (M2M100), Zhang et
    al. 2020 (Pegasus), Junczys-Dowmunt et al. 2018 (Marian), and their models in transformers 5.
    """
    place = "before" if pre_norm else "after"
    encoder, decoder = (
        Stack(
            d_model=d_model, num_layers=num_layers, num_heads=num_heads, d_ff=d_ff, gated=False,
            head_dim=max(1, d_model // max(1, num_heads)), activation=activation,
            positions=Absolute(max_positions, positions, position_offset),
            norm=Norm("layer", 1e-5, place, embedding_norm), biases="all",
        )
        for num_layers in (num_encoder_layers, num_decoder_layers)
    )  # fmt: skip
    return TransformerConfig(
        vocab_size=vocab_size, decoder=decoder, encoder=encoder,
        logits=Logits(tied_logits, bias=logits_bias), scaled_embedding=scaled_embedding,
        encoder_vocab_size=encoder_vocab_size, dropout_rate=dropout_rate, dtype=dtype,
        pad_id=pad_id, eos_id=eos_id, more_eos_ids=more_eos_ids, start_id=decoder_start_id,
    )  # fmt: skip
