"""Settings of networks with rotary positions by their own names."""

from __future__ import annotations

from typing import Required, TypedDict, Unpack

from specdec.models.transformer.config import (
    Activation,
    Logits,
    Norm,
    Rope,
    Rotary,
    TransformerConfig,
)
from specdec.models.transformer.config import Stack as TransformerStack

_ROPE = Rope()


class Settings(TypedDict, total=False):
    """Settings of :class:`TransformerStack` that are called as there."""

    d_model: Required[int]
    num_layers: Required[int]
    num_heads: Required[int]
    num_kv_heads: int | None
    head_dim: Required[int]
    d_ff: Required[int]
    query_key_norms: bool
    query_scalar: float | None
    attention_softcap: float | None
    sliding: tuple[bool, ...]
    window: tuple[int, int] | None


class Layers(Settings, total=False):
    """Settings of :func:`Stack`."""

    shifted_norms: bool
    norms_after: bool
    qkv_biases: bool
    layer_norm_epsilon: float
    activation: Activation
    rope: Rope
    sliding_rope: Rope | None


def Stack(
    *, shifted_norms: bool = False, norms_after: bool = False, qkv_biases: bool = False,
    layer_norm_epsilon: float = 1e-6, activation: Activation = "silu", rope: Rope = _ROPE,
    sliding_rope: Rope | None = None, **others: Unpack[Settings],
) -> TransformerStack:  # fmt: skip
    """A decoder's layers, or an encoder's; others are called as in :class:`TransformerStack`."""
    kind, place = "shifted_rms" if shifted_norms else "rms", "both" if norms_after else "before"
    return TransformerStack(
        positions=Rotary(rope, sliding_rope), norm=Norm(kind, layer_norm_epsilon, place),
        biases="qkv" if qkv_biases else "none", activation=activation, **others,
    )  # fmt: skip


def RotaryConfig(
    *, vocab_size: int, trained_positions: int = 8192, scaled_embedding: bool = False,
    tied_logits: bool = True, logits_softcap: float | None = None,
    encoder: TransformerStack | Layers | None = None, merged_attention: bool = False,
    shared_embedding: bool = True, dropout_rate: float = 0.0, dtype: str = "float32",
    pad_id: int = 0, eos_id: int | None = 1, more_eos_ids: tuple[int, ...] = (), start_id: int = 2,
    image_ids: tuple[int, ...] = (), **stack: Unpack[Layers],
) -> TransformerConfig:  # fmt: skip
    """A decoder, whose layers are those of :func:`Stack`, and with ``encoder`` an encoder-decoder.

    The Gemma Team 2024 and 2025, "Gemma 2", "Gemma 3"; Grattafiori et al. 2024, "The Llama 3 Herd
    of Models"; Zhang et al. 2025, "Encoder-Decoder Gemma"; transformers' code for each.
    """
    own = encoder is not None and not shared_embedding
    return TransformerConfig(
        vocab_size=vocab_size, decoder=Stack(**stack),
        encoder=Stack(**encoder) if isinstance(encoder, dict) else encoder,
        logits=Logits(tied_logits, softcap=logits_softcap), scaled_embedding=scaled_embedding,
        encoder_vocab_size=vocab_size if own else None, merged_attention=merged_attention,
        trained_positions=trained_positions, dropout_rate=dropout_rate, dtype=dtype, pad_id=pad_id,
        eos_id=eos_id, more_eos_ids=more_eos_ids, start_id=start_id, image_ids=image_ids,
    )  # fmt: skip
