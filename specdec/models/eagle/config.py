"""Shape of an EAGLE-style layer."""

from __future__ import annotations

import dataclasses

from specdec.core.arguments import whole
from specdec.models.t5.config import T5Config


@dataclasses.dataclass(frozen=True)
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

    width: int
    inner_width: int
    num_heads: int
    head_dim: int
    d_ff: int
    reads_encoding: bool
    encoding_width: int | None = None

    def __post_init__(self):
        for name in ("width", "inner_width", "num_heads", "head_dim", "d_ff"):
            whole(name, getattr(self, name), 1)
        if not isinstance(self.reads_encoding, bool):
            raise ValueError(f"reads_encoding must be True or False, got {self.reads_encoding!r}.")
        if self.encoding_width is not None:
            whole("encoding_width", self.encoding_width, 1)

    @property
    def encoder_width(self) -> int:
        """Of what the target's encoder makes of a text."""
        return self.width if self.encoding_width is None else self.encoding_width

    @property
    def layer(self) -> T5Config:
        """A T5 decoder's layer, whose embedding and logits nobody uses."""
        return T5Config(
            vocab_size=2, d_model=self.inner_width, num_encoder_layers=0,
            encoding_width=self.encoder_width, num_decoder_layers=1, num_heads=self.num_heads,
            head_dim=self.head_dim, d_ff=self.d_ff,
        )  # fmt: skip
