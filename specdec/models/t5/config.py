"""T5's settings by their own names."""

from __future__ import annotations

from specdec.models.transformer.config import (
    Activation,
    Logits,
    Norm,
    Relative,
    Stack,
    TransformerConfig,
)


def T5Config(
    vocab_size: int, d_model: int, num_encoder_layers: int, num_decoder_layers: int, num_heads: int,
    head_dim: int, d_ff: int, activation: Activation = "gelu", gated: bool = True,
    tied_logits: bool = False, relative_attention_num_buckets: int = 32,
    relative_attention_max_distance: int = 128, relative_bias_in_every_layer: bool = False,
    layer_norm_epsilon: float = 1e-6, dropout_rate: float = 0.0, dtype: str = "float32",
    encoding_width: int | None = None, pad_id: int = 0, eos_id: int | None = 1,
    more_eos_ids: tuple[int, ...] = (), decoder_start_id: int = 0,
) -> TransformerConfig:  # fmt: skip
    """A T5, v1.0 and v1.1 alike.

    v1.1 (Flan, mT5) is ``activation="gelu", gated=True, tied_logits=False``; v1.0 is
    ``activation="relu", gated=False, tied_logits=True``, which scales them. UMT5 is v1.1 with
    ``relative_bias_in_every_layer``. Source: Raffel et al. 2020, the T5 v1.1 notes in the T5X
    repository and Chung et al. 2023 (UniMax).
    """
    buckets, distance = relative_attention_num_buckets, relative_attention_max_distance
    encoder, decoder = (
        Stack(
            d_model=d_model, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim,
            d_ff=d_ff, positions=Relative(buckets, distance, relative_bias_in_every_layer),
            norm=Norm("rms", layer_norm_epsilon), activation=activation, gated=gated,
            query_scalar=1.0,
        )
        for num_layers in (num_encoder_layers, num_decoder_layers)
    )  # fmt: skip
    return TransformerConfig(
        vocab_size=vocab_size, decoder=decoder, encoder=encoder,
        logits=Logits(tied=tied_logits, scaled=tied_logits), encoding_width=encoding_width,
        dropout_rate=dropout_rate, dtype=dtype, pad_id=pad_id, eos_id=eos_id,
        more_eos_ids=more_eos_ids, start_id=decoder_start_id,
    )  # fmt: skip
