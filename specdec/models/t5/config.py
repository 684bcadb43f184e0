"""Shape and variant of a T5 model."""

from __future__ import annotations

import dataclasses
from typing import Literal

from specdec.core.arguments import MOST_LAYERS, MOST_SIZE, real, truth, whole

Activation = Literal["relu", "gelu", "silu"]


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Everything that fixes a T5 network's arithmetic, T5 v1.0 and v1.1 alike.

    v1.1 (Flan, mT5) is ``activation="gelu", gated=True, tied_logits=False``;
    v1.0 is ``activation="relu", gated=False, tied_logits=True``. UMT5 is v1.1 with
    ``relative_bias_in_every_layer``. Source: Raffel et al. 2020, the T5 v1.1 notes in the T5X
    repository and Chung et al. 2023 (UniMax).
    """

    vocab_size: int  # Rows of the embedding, V. May exceed the vocabulary's own size (padding).
    d_model: int  # Width of the residual stream, D.
    num_encoder_layers: int
    num_decoder_layers: int  # Depths need not be equal.
    num_heads: int  # H
    head_dim: int  # K. H * K need not equal D.
    d_ff: int  # Hidden width of the feed-forward block, F.
    activation: Activation = "gelu"  # Of the feed-forward block; the tanh approximation.
    gated: bool = True  # The feed-forward block is act(x wi_0) * (x wi_1) instead of act(x wi).
    # Logits are h @ embedding.T scaled by D**-0.5 (v1.0) instead of a separate ``logits_dense``
    # without scaling (v1.1).
    tied_logits: bool = False
    relative_attention_num_buckets: int = 32  # T5's position biases.
    relative_attention_max_distance: int = 128
    # Each layer's self-attention has biases of its own (UMT5), instead of the stack's.
    relative_bias_in_every_layer: bool = False
    layer_norm_epsilon: float = 1e-6  # Added to the mean square in RMSNorm.
    dropout_rate: float = 0.0  # In training only; broadcast along length as T5X does.
    dtype: str = "float32"  # Of activations in training and encoding; or "bfloat16".
    # Of a draft that starts from its target's encoding of a text, that one's width: its encoder,
    # which may then have no layers, adds a projection of it to the embedded tokens.
    encoding_width: int | None = None
    pad_id: int = 0
    eos_id: int | None = 1  # None: nothing ends an output but its limit.
    more_eos_ids: tuple[int, ...] = ()  # They, too, end an output.
    decoder_start_id: int = 0

    def __post_init__(self):
        least: dict[str, int] = dict.fromkeys(
            ("vocab_size", "d_model", "num_decoder_layers", "num_heads", "head_dim", "d_ff"), 1
        )
        if self.encoding_width is None:
            least["num_encoder_layers"] = 1
        else:
            least |= {"num_encoder_layers": 0, "encoding_width": 1}
        least["relative_attention_num_buckets"] = least["relative_attention_max_distance"] = 1
        for name, smallest in least.items():
            most = MOST_LAYERS if name.endswith("_layers") else MOST_SIZE
            whole(f"T5Config.{name}", getattr(self, name), smallest, most)
        for name in ("layer_norm_epsilon", "dropout_rate"):
            real(f"T5Config.{name}", getattr(self, name), "a number in [0, 1)", 0, 1 - 1e-12)
        for name in ("gated", "tied_logits", "relative_bias_in_every_layer"):
            truth(f"T5Config.{name}", getattr(self, name))
        buckets = self.relative_attention_num_buckets
        distance = self.relative_attention_max_distance
        if buckets < 4 or buckets % 2 or distance <= buckets // 2:
            raise ValueError(
                "T5Config.relative_attention_num_buckets must be even, at least 4 and less than "
                f"twice relative_attention_max_distance, got {buckets} and {distance}."
            )
        known = self.activation in ("relu", "gelu", "silu")
        self._check("activation", known, "'relu', 'gelu' or 'silu'")
        self._check("dtype", self.dtype in ("float32", "bfloat16"), "'float32' or 'bfloat16'")
        object.__setattr__(self, "more_eos_ids", tuple(self.more_eos_ids))  # JSON's are lists.
        tokens = {name: (getattr(self, name),) for name in ("pad_id", "decoder_start_id")}
        ends = () if self.eos_id is None else (self.eos_id,)
        for name, ids in (tokens | {"eos_id": (*ends, *self.more_eos_ids)}).items():
            for token in ids:
                whole(f"T5Config.{name}", token, 0, self.vocab_size - 1)

    def _check(self, name: str, valid: bool, asked: str) -> None:
        if not valid:
            raise ValueError(f"T5Config.{name} must be {asked}, got {getattr(self, name)!r}.")

    @property
    def reads_prefix(self) -> bool:
        """An encoder reads the text."""
        return False

    @property
    def start_id(self) -> int:
        """What the first token of an output follows."""
        return self.decoder_start_id

    @property
    def encoder_width(self) -> int:
        """Of what the encoder gives a draft."""
        return self.d_model
