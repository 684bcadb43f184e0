"""Shape and variant of a GPT-2 model."""

from __future__ import annotations

from typing import Literal

from specdec.core.fields import checked
from specdec.models.config import Dtype, Ids, Layers, Rate, Size, check_ids

Activation = Literal["relu", "gelu", "gelu_exact"]


@checked(named=True)
class GPTConfig:
    """Everything that fixes a GPT-2 network's arithmetic.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and OpenAI's
    gpt-2 code: learned positions, LayerNorm before each part, biases everywhere.
    """

    vocab_size: Size  # Rows of the embedding, V. May exceed the vocabulary's own size (padding).
    max_positions: Size  # Tokens that prompt and output may have together, P.
    d_model: Size  # Width of the residual stream, D.
    num_layers: Layers
    num_heads: Size  # H, which divides D.
    d_ff: Size  # Hidden width of the feed-forward block, F.
    # Of the feed-forward block: "gelu" is the tanh approximation, which GPT-2 has, "gelu_exact"
    # the error function.
    activation: Activation = "gelu"
    tied_logits: bool = (
        True  # Logits are h @ embedding.T instead of a ``logits_dense`` of their own.
    )
    layer_norm_epsilon: Rate = 1e-5  # Added to the variance in LayerNorm.
    dropout_rate: Rate = 0.0  # In training only.
    dtype: Dtype = "float32"  # Of activations; or "bfloat16".
    pad_id: int = 0  # Token that outputs are filled up with.
    eos_id: int | None = 0  # None: nothing ends an output but its limit.
    more_eos_ids: Ids = ()  # They, too, end an output.
    start_id: int = 0  # The token of an empty prompt.

    def __post_init__(self):
        if self.d_model % self.num_heads:
            raise ValueError(
                f"GPTConfig.num_heads must divide d_model = {self.d_model}, got {self.num_heads}."
            )
        check_ids(self, "start_id")

    @property
    def head_dim(self) -> int:
        """K."""
        return self.d_model // self.num_heads

    @property
    def reads_prefix(self) -> bool:
        """True: the output continues a text."""
        return True

    @property
    def encoder_width(self) -> None:
        """None: there is no encoder."""
        return None

    @property
    def encoding_width(self) -> None:
        """None: it starts from no encoding."""
        return None

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers: all are the decoder's."""
        return self.num_layers
