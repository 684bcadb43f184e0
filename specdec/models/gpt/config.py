"""Shape and variant of a GPT-2 model."""

from __future__ import annotations

import dataclasses
from typing import Literal

from specdec.core.arguments import MOST_LAYERS, MOST_SIZE, real, truth, whole

Activation = Literal["relu", "gelu", "gelu_exact"]


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Everything that fixes a GPT-2 network's arithmetic.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and OpenAI's
    gpt-2 code: learned positions, LayerNorm before each part, biases everywhere.
    """

    vocab_size: int  # Rows of the embedding, V. May exceed the vocabulary's own size (padding).
    max_positions: int  # Tokens that prompt and output may have together, P.
    d_model: int  # Width of the residual stream, D.
    num_layers: int
    num_heads: int  # H, which divides D.
    d_ff: int  # Hidden width of the feed-forward block, F.
    # Of the feed-forward block: "gelu" is the tanh approximation, which GPT-2 has, "gelu_exact"
    # the error function.
    activation: Activation = "gelu"
    tied_logits: bool = (
        True  # Logits are h @ embedding.T instead of a ``logits_dense`` of their own.
    )
    layer_norm_epsilon: float = 1e-5  # Added to the variance in LayerNorm.
    dropout_rate: float = 0.0  # In training only.
    dtype: str = "float32"  # Of activations; or "bfloat16".
    pad_id: int = 0  # What outputs are filled up with.
    eos_id: int | None = 0  # None: nothing ends an output but its limit.
    more_eos_ids: tuple[int, ...] = ()  # They, too, end an output.
    start_id: int = 0  # What an empty prompt is: generation from nothing follows it.

    def __post_init__(self):
        for name in ("vocab_size", "max_positions", "d_model", "num_layers", "num_heads", "d_ff"):
            most = MOST_LAYERS if name == "num_layers" else MOST_SIZE
            whole(f"GPTConfig.{name}", getattr(self, name), 1, most)
        for name in ("layer_norm_epsilon", "dropout_rate"):
            real(f"GPTConfig.{name}", getattr(self, name), "a number in [0, 1)", 0, 1 - 1e-12)
        truth("GPTConfig.tied_logits", self.tied_logits)
        if self.d_model % self.num_heads:
            raise ValueError(
                f"GPTConfig.num_heads must divide d_model = {self.d_model}, got {self.num_heads}."
            )
        for name, known in (
            ("activation", ("relu", "gelu", "gelu_exact")), ("dtype", ("float32", "bfloat16"))
        ):  # fmt: skip
            if getattr(self, name) not in known:
                asked = " or ".join(map(repr, known))
                raise ValueError(f"GPTConfig.{name} must be {asked}, got {getattr(self, name)!r}.")
        object.__setattr__(self, "more_eos_ids", tuple(self.more_eos_ids))  # JSON's are lists.
        tokens = {name: (getattr(self, name),) for name in ("pad_id", "start_id")}
        ends = () if self.eos_id is None else (self.eos_id,)
        for name, ids in (tokens | {"eos_id": (*ends, *self.more_eos_ids)}).items():
            for token in ids:
                whole(f"GPTConfig.{name}", token, 0, self.vocab_size - 1)

    @property
    def head_dim(self) -> int:
        """K."""
        return self.d_model // self.num_heads

    @property
    def reads_prefix(self) -> bool:
        """A text is what the output continues."""
        return True

    @property
    def encoder_width(self) -> None:
        """There is no encoder."""
        return None

    @property
    def encoding_width(self) -> None:
        """It starts from no encoding."""
        return None

    @property
    def num_decoder_layers(self) -> int:
        """All layers are the decoder's."""
        return self.num_layers
