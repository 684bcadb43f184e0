"""Shape and settings of a transformer with rotary positions."""

from __future__ import annotations

from typing import Literal

from specdec.core.arguments import truth, whole
from specdec.core.fields import Count, checked
from specdec.models.config import Dtype, Ids, Layers, Positive, Rate, Size, check_ids

Activation = Literal["silu", "gelu"]


@checked(named=True)
class Rope:
    """Rotary positions: how fast each pair of a head's features turns (Su et al. 2021).

    Attributes:
      base: pair i of K / 2 turns by base ** (-2i / K) a position.
      factor: of linear scaling: all pairs turn so many times more slowly.
      low, high, original: Llama 3's scaling. Pairs that turn less than ``low`` times in
        ``original`` positions turn ``factor`` times more slowly, those that turn more than ``high``
        times are kept, and those between are interpolated. All three or none.
    """

    base: Positive = 10_000.0
    factor: Positive = 1.0
    low: Positive | None = None
    high: Positive | None = None
    original: Positive | None = None

    def __post_init__(self):
        given = {name: getattr(self, name) for name in ("low", "high", "original")}
        if len({value is None for value in given.values()}) > 1:
            raise ValueError(f"Rope.low, high and original must all be given or none, got {given}.")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"Rope.low must be less than high = {self.high}, got {self.low}.")


@checked(named=True, kw_only=True)
class Stack:
    """Dimensions and options of a stack of layers, a decoder's or an encoder's."""

    d_model: Size  # Width of the residual stream, D.
    num_layers: Layers
    num_heads: Size  # H
    num_kv_heads: Size  # G, which divides H: so many heads of queries share each key and value.
    head_dim: Size  # K, an even number. H * K need not equal D.
    d_ff: Size  # Hidden width of the gated feed-forward block, F.
    activation: Activation = "silu"  # Of its gate; "gelu" is the tanh approximation.
    shifted_norms: bool = False  # RMSNorms multiply with 1 + scale instead of the scale.
    norms_after: bool = False  # Each part has a norm behind it as well as before it.
    query_key_norms: bool = False  # Each head's query and key are normalised before they turn.
    qkv_biases: bool = False
    query_scalar: Positive | None = None  # Scores are divided by its root; None for head_dim.
    attention_softcap: Positive | None = None  # C: scores are C tanh(score / C).
    rope: Rope = Rope()
    # Which layers see a window only, repeated as often as there are layers; empty for none.
    sliding: tuple[bool, ...] = ()
    window: tuple[int, int] | None = None  # Numbers of tokens that they see before, and after.
    sliding_rope: Rope | None = None  # Theirs; None for the same.
    layer_norm_epsilon: Rate = 1e-6  # Added to the mean square in RMSNorm.

    def __post_init__(self):
        kind = type(self).__name__
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{kind}.num_kv_heads must divide num_heads = {self.num_heads}, got "
                f"{self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"{kind}.head_dim must be even, got {self.head_dim}.")
        # JSON has lists and dicts.
        given = [truth(f"{kind}.sliding", each) for each in self.sliding]
        object.__setattr__(self, "sliding", _shortest(given, self.num_layers))
        if self.window is not None:
            before, after = self.window
            reach = tuple(whole(f"{kind}.window", each, 0) for each in (before, after))
            object.__setattr__(self, "window", reach)
        elif any(self.sliding):
            raise ValueError(f"{kind}.window must be given where layers are sliding.")
        for name in ("rope", "sliding_rope"):
            if isinstance(given := getattr(self, name), dict):
                object.__setattr__(self, name, Rope(**given))

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return bool(self.sliding) and self.sliding[layer % len(self.sliding)]

    def rope_of(self, sliding: bool) -> Rope:
        """Rotation of layers that see a window, or of the others."""
        return self.sliding_rope if sliding and self.sliding_rope is not None else self.rope

    @property
    def query_scale(self) -> float:
        """Factor of queries."""
        return (self.head_dim if self.query_scalar is None else self.query_scalar) ** -0.5


def _shortest(pattern: list[bool], layers: int) -> tuple[bool, ...]:
    """The shortest pattern that says the same of so many layers."""
    if not any(pattern):
        return ()
    each = [pattern[i % len(pattern)] for i in range(layers)]
    if not any(each):
        return ()
    return tuple(each[: next(n for n in range(1, layers + 1) if each[n:] == each[:-n])])


@checked(named=True, kw_only=True)
class RotaryConfig(Stack):
    """A decoder, and with ``encoder`` an encoder-decoder.

    The Gemma Team 2024 and 2025, "Gemma 2", "Gemma 3"; Grattafiori et al. 2024, "The Llama 3 Herd
    of Models"; Zhang et al. 2025, "Encoder-Decoder Gemma"; transformers' code for each.
    """

    vocab_size: Size  # Rows of the embedding, V. May exceed the vocabulary's own size (padding).
    # Tokens that it was trained on at once; positions have no end of their own.
    trained_positions: Count = 8192
    scaled_embedding: bool = False  # Embedded tokens are multiplied with D ** 0.5.
    tied_logits: bool = True  # Logits are h @ embedding.T.
    logits_softcap: Positive | None = None  # C: logits are C tanh(logit / C).
    encoder: Stack | None = None  # Sees in both directions.
    # One softmax over own and encoder's entries, of the same kernels; an encoder's keys do not
    # turn. Else cross-attention is a part of its own.
    merged_attention: bool = False
    shared_embedding: bool = True  # The encoder has the decoder's; needs the same d_model.
    dropout_rate: Rate = 0.0  # In training only.
    dtype: Dtype = "float32"  # Of activations; or "bfloat16".
    pad_id: int = 0  # Token that outputs are filled up with.
    eos_id: int | None = 1  # None: nothing ends an output but its limit.
    more_eos_ids: Ids = ()  # They, too, end an output.
    # Token before an encoder-decoder's output, or a decoder's where the prompt is empty.
    start_id: int = 2
    # Of an image in a text, and before and behind one: such texts are refused. -1 for none.
    image_ids: Ids = ()

    def __post_init__(self):
        super().__post_init__()
        check_ids(self, "start_id")
        if isinstance(self.encoder, dict):
            object.__setattr__(self, "encoder", Stack(**self.encoder))
        if self.encoder is None:
            if self.merged_attention:
                raise ValueError("RotaryConfig.merged_attention needs an encoder.")
        elif self.qkv_biases:
            raise ValueError("RotaryConfig.qkv_biases with an encoder are not supported.")
        elif any(
            getattr(self, name) != getattr(self.encoder, name)
            for name in ("shifted_norms", "layer_norm_epsilon")
        ):
            raise ValueError("RotaryConfig.encoder must have the decoder's kind of norms.")
        elif (self.shared_embedding or self.merged_attention) and (
            self.encoder.d_model != self.d_model
        ):
            raise ValueError(
                "RotaryConfig.encoder.d_model must be the decoder's where they share an embedding "
                f"or keys, got {self.encoder.d_model} and {self.d_model}."
            )

    @property
    def reads_prefix(self) -> bool:
        """Whether the output continues a text, and no encoder reads it."""
        return self.encoder is None

    @property
    def encoder_width(self) -> int | None:
        """Width of the encoder's output, as a draft gets it; None where there is no encoder."""
        return None if self.encoder is None else self.encoder.d_model

    @property
    def encoding_width(self) -> None:
        """None: it starts from no encoding but its own."""
        return None

    @property
    def num_decoder_layers(self) -> int:
        """Number of the decoder's layers."""
        return self.num_layers

    @property
    def stacks(self) -> dict[str, Stack]:
        """Stacks by name, the encoder first if there is one."""
        own: dict[str, Stack] = {"decoder": self}
        return own if self.encoder is None else {"encoder": self.encoder, **own}
