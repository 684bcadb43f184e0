"""Shape of an EAGLE-style layer."""

from __future__ import annotations

from specdec.core.fields import Count, checked
from specdec.models.t5.config import T5Config
from specdec.models.transformer.config import TransformerConfig


@checked()
class EagleConfig:
    """A decoder layer between two projections.

    Attributes:
      width: D, of the target's hidden states and embedding.
      inner_width: W, of the layer's residual stream.
      num_heads, head_dim, d_ff: of the layer.
      reads_encoding: whether it attends to what the target's encoder made of a text.
      encoding_width: of that, where it is not D.

    Raises:
      ValueError: a value out of range.
    """

    width: Count
    inner_width: Count
    num_heads: Count
    head_dim: Count
    d_ff: Count
    reads_encoding: bool
    encoding_width: Count | None = None

    @property
    def encoder_width(self) -> int:
        """Width of the encoding that the target's encoder makes of a text."""
        return self.width if self.encoding_width is None else self.encoding_width

    @property
    def layer(self) -> TransformerConfig:
        """A T5 decoder's layer, whose embedding and logits nobody uses."""
        return T5Config(
            vocab_size=2, d_model=self.inner_width, num_encoder_layers=0,
            encoding_width=self.encoder_width, num_decoder_layers=1, num_heads=self.num_heads,
            head_dim=self.head_dim, d_ff=self.d_ff,
        )  # fmt: skip
