"""Shape and variant of a T5 model."""

from __future__ import annotations

from typing import Literal

from specdec.core.arguments import MOST_LAYERS, whole
from specdec.core.fields import checked
from specdec.models.config import Dtype, Ids, Layers, Rate, Size, check_ids

Activation = Literal["relu", "gelu", "silu"]


@checked(named=True)
class T5Config:
    """Everything that fixes a T5 network's arithmetic, T5 v1.0 and v1.1 alike.

    v1.1 (Flan, mT5) is ``activation="gelu", gated=True, tied_logits=False``;
    v1.0 is ``activation="relu", gated=False, tied_logits=True``. UMT5 is v1.1 with
    ``relative_bias_in_every_layer``. Source: Raffel et al. 2020, the T5 v1.1 notes in the T5X
    repository and Chung et al. 2023 (UniMax).
    """

    vocab_size: Size  # Rows of the embedding, V. May exceed the vocabulary's own size (padding).
    d_model: Size  # Width of the residual stream, D.
    num_encoder_layers: int
    num_decoder_layers: Layers  # Depths need not be equal.
    num_heads: Size  # H
    head_dim: Size  # K. H * K need not equal D.
    d_ff: Size  # Hidden width of the feed-forward block, F.
    activation: Activation = "gelu"  # Of the feed-forward block; the tanh approximation.
    gated: bool = True  # The feed-forward block is act(x wi_0) * (x wi_1) instead of act(x wi).
    # Logits are h @ embedding.T scaled by D**-0.5 (v1.0) instead of a separate ``logits_dense``
    # without scaling (v1.1).
    tied_logits: bool = False
    relative_attention_num_buckets: Size = 32  # T5's position biases.
    relative_attention_max_distance: Size = 128
    # Each layer's self-attention has biases of its own (UMT5), instead of the stack's.
    relative_bias_in_every_layer: bool = False
    layer_norm_epsilon: Rate = 1e-6  # Added to the mean square in RMSNorm.
    dropout_rate: Rate = 0.0  # In training only; broadcast along length as T5X does.
    dtype: Dtype = "float32"  # Of activations in training and encoding; or "bfloat16".
    # Of a draft that starts from its target's encoding of a text, that one's width: its encoder,
    # which may then have no layers, adds a projection of it to the embedded tokens.
    encoding_width: Size | None = None
    pad_id: int = 0
    eos_id: int | None = 1  # None: nothing ends an output but its limit.
    more_eos_ids: Ids = ()  # They, too, end an output.
    decoder_start_id: int = 0

    def __post_init__(self):
        least = 1 if self.encoding_width is None else 0
        whole("T5Config.num_encoder_layers", self.num_encoder_layers, least, MOST_LAYERS)
        buckets = self.relative_attention_num_buckets
        distance = self.relative_attention_max_distance
        if buckets < 4 or buckets % 2 or distance <= buckets // 2:
            raise ValueError(
                "T5Config.relative_attention_num_buckets must be even, at least 4 and less than "
                f"twice relative_attention_max_distance, got {buckets} and {distance}."
            )
        check_ids(self, "decoder_start_id")

    @property
    def reads_prefix(self) -> bool:
        """An encoder reads the text."""
        return False

    @property
    def start_id(self) -> int:
        """The token before the first token of an output."""
        return self.decoder_start_id

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output, as a draft gets it."""
        return self.d_model
