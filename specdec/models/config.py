"""Fields that every architecture's config has."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol


class Config(Protocol):
    """A frozen dataclass of everything that fixes a network's arithmetic."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, V."""
        ...

    @property
    def d_model(self) -> int:
        """Width of the decoder's residual stream, D."""
        ...

    @property
    def num_decoder_layers(self) -> int: ...

    @property
    def num_heads(self) -> int:
        """Number of heads of the decoder's queries, H."""
        ...

    @property
    def head_dim(self) -> int:
        """K."""
        ...

    @property
    def d_ff(self) -> int:
        """Hidden width of the decoder's feed-forward block, F."""
        ...

    @property
    def reads_prefix(self) -> bool:
        """Whether the output continues a text, and no encoder reads it."""
        ...

    @property
    def encoder_width(self) -> int | None:
        """Width of the encoder's output, as a draft gets it; None where there is no encoder."""
        ...

    @property
    def encoding_width(self) -> int | None:
        """Width of the target's encoding, where a draft starts from it; else None."""
        ...

    @property
    def tied_logits(self) -> bool:
        """Whether logits come from the embedding."""
        ...

    @property
    def dropout_rate(self) -> float:
        """Rate of dropout, in training only."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of activations."""
        ...

    @property
    def pad_id(self) -> int: ...

    @property
    def start_id(self) -> int:
        """Token before an encoder-decoder's output, or a decoder's where there is no text."""
        ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def more_eos_ids(self) -> tuple[int, ...]: ...
