"""Shape and variant of a BART, mBART, M2M100 (NLLB), Marian or Pegasus."""

from __future__ import annotations

from typing import Annotated, Literal

from specdec.core.arguments import MOST_SIZE
from specdec.core.fields import Whole, checked
from specdec.models.config import Dtype, Ids, Layers, Rate, Size, check_ids

Activation = Literal["relu", "gelu", "gelu_exact", "silu"]
Positions = Literal["learned", "sinusoidal", "tensor2tensor"]


@checked(named=True)
class BartConfig:
    """Everything that fixes the arithmetic of these encoder-decoders.

    All have LayerNorm, and biases everywhere. Source: Lewis et al. 2020 (BART), Liu et al. 2020
    (mBART), Fan et al. 2021 (M2M100), Zhang et al. 2020 (Pegasus), Junczys-Dowmunt et al. 2018
    (Marian), and their models in transformers 5.
    """

    vocab_size: Size  # Rows of the decoder's embedding, V. May exceed the vocabulary's own size.
    max_positions: Size  # Tokens that an input may have, and prefix and output together, P.
    d_model: Size  # Width of the residual stream, D.
    num_encoder_layers: Layers
    num_decoder_layers: Layers  # Depths need not be equal.
    num_heads: Size  # H, which divides D.
    d_ff: Size  # Hidden width of the feed-forward block, F.
    # "sinusoidal": sines, then cosines, of frequencies 10000**(-2k / D), as in Vaswani et al. 2017.
    # "tensor2tensor": the same of 10000**(-k / (D / 2 - 1)), so that the last is 1 / 10000.
    positions: Positions = "learned"
    # The row of its table that the first position has.
    position_offset: Annotated[int, Whole(0, MOST_SIZE)] = 2
    pre_norm: bool = False  # Norms before each part and behind all layers, not after each part.
    embedding_norm: bool = True  # A norm of embedded tokens and their positions.
    scaled_embedding: bool = False  # Embedded tokens are multiplied with sqrt(D).
    # Of the feed-forward block: "gelu" is the tanh approximation, "gelu_exact" the error function.
    activation: Activation = "gelu_exact"
    logits_bias: bool = True  # A number for each token is added to its logit.
    tied_logits: bool = True  # Logits are h @ embedding.T instead of a ``logits_dense``.
    # Rows of the encoder's own embedding; None where it has the decoder's.
    encoder_vocab_size: Size | None = None
    dropout_rate: Rate = 0.0  # In training only.
    dtype: Dtype = "float32"  # Of activations; or "bfloat16".
    pad_id: int = 1
    eos_id: int | None = 2  # None: nothing ends an output but its limit.
    more_eos_ids: Ids = ()  # They, too, end an output.
    decoder_start_id: int = 2

    def __post_init__(self):
        if self.d_model % self.num_heads:
            raise ValueError(
                f"BartConfig.num_heads must divide d_model = {self.d_model}, got {self.num_heads}."
            )
        if self.positions != "learned" and (self.d_model % 2 or self.d_model < 4):
            raise ValueError(
                "BartConfig.d_model must be even and at least 4 for sines and cosines, got "
                f"{self.d_model}."
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

    @property
    def encoding_width(self) -> None:
        """None: it starts from no encoding but its own."""
        return None

    @property
    def head_dim(self) -> int:
        """K."""
        return self.d_model // self.num_heads

    @property
    def layer_norm_epsilon(self) -> float:
        """Number added to the variance in LayerNorm."""
        return 1e-5
