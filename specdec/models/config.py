"""Fields that every architecture's config has."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Protocol

from specdec.core.arguments import MOST_LAYERS, MOST_SIZE, positive, whole
from specdec.core.fields import BELOW_1, OneOf, Real, Whole


def _positive(name: str, value: Any) -> Any:
    """``value``, an int where it is one: config.json keeps it so."""
    positive(name, value, "a positive number")
    return value


Size = Annotated[int, Whole(1, MOST_SIZE)]
Layers = Annotated[int, Whole(1, MOST_LAYERS)]
Rate = Annotated[float, Real("a number in [0, 1)", 0, BELOW_1)]
Positive = Annotated[float, _positive]
Dtype = Annotated[str, OneOf("float32", "bfloat16")]
Ids = Annotated[tuple[int, ...], lambda name, given: tuple(given)]  # JSON's are lists.


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


def check_ids(config: Config, *starts: str) -> None:
    """Raises ValueError unless pad, ends and starts are tokens of the vocabulary."""
    ends = () if config.eos_id is None else (config.eos_id,)
    ids = {name: (getattr(config, name),) for name in ("pad_id", *starts)}
    for name, tokens in (ids | {"eos_id": (*ends, *config.more_eos_ids)}).items():
        for token in tokens:
            whole(f"{type(config).__name__}.{name}", token, 0, config.vocab_size - 1)
