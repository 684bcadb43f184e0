"""Everything that fixes a Transformer's arithmetic, as values that check themselves.

A :class:`TransformerConfig` has a decoder, perhaps an encoder, and what they have in common. Each
:class:`Stack` has positions and norms. Parts are combined as some family combines them; any other
combination is a ValueError where it is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, cast

from specdec.core.arguments import MOST_LAYERS, MOST_SIZE, positive, truth, whole
from specdec.core.fields import BELOW_1, OneOf, Real, Whole, checked

# "gelu" is the tanh approximation, "gelu_exact" the error function.
Activation = Literal["relu", "gelu", "gelu_exact", "silu"]


def _positive(name: str, value: object) -> object:
    """``value``, an int where it is one: config.json keeps it so."""
    positive(name, value, "a positive number")
    return value


def _make(value: object, **kinds: type) -> None:
    """Makes parts of a frozen value of the dicts that JSON has for them."""
    for name, kind in kinds.items():
        if isinstance(given := getattr(value, name), Mapping):
            object.__setattr__(value, name, kind(**given))


def _layers(name: str, value: object) -> int:
    """A stack's number of layers, checked; the whole network decides whether it may be 0."""
    return value if type(value) is int and value == 0 else whole(name, value, 1, MOST_LAYERS)


Size = Annotated[int, Whole(1, MOST_SIZE)]
Rate = Annotated[float, Real("a number in [0, 1)", 0, BELOW_1)]
Positive = Annotated[float, _positive]
Dtype = Annotated[str, OneOf("float32", "bfloat16", "float16")]
Ids = Annotated[tuple[int, ...], lambda name, given: tuple(given)]  # JSON's are lists.


@checked(named=True)
class Relative:
    """T5's positions: a bias of each head for each bucket of distances (Raffel et al. 2020)."""

    buckets: Size = 32
    distance: Size = 128  # The farthest that differs from farther ones.
    in_every_layer: bool = False  # Each layer has biases of its own (UMT5), not the stack's.

    def __post_init__(self):
        if self.buckets < 4 or self.buckets % 2 or self.distance <= self.buckets // 2:
            raise ValueError(
                "Relative.buckets must be even, at least 4 and less than twice the distance, got "
                f"{self.buckets} and {self.distance}."
            )


@checked(named=True)
class Absolute:
    """A vector for each position, which is added to embedded tokens.

    Attributes:
      count: tokens that an input may have, and prefix and output together, P.
      kind: "sinusoidal": sines, then cosines, of frequencies 10000**(-2k / D) (Vaswani et al.
        2017); "tensor2tensor": of 10000**(-k / (D / 2 - 1)), so that the last is 1 / 10000.
      offset: the row of its table that the first position has.
    """

    count: Size
    kind: Literal["learned", "sinusoidal", "tensor2tensor"] = "learned"
    offset: Annotated[int, Whole(0, MOST_SIZE)] = 0


@checked(named=True)
class Rope:
    """Angles of rotary positions: how fast each pair of a head's features turns (Su et al. 2021).

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


@checked(named=True)
class Rotary:
    """Rotary positions: queries and keys turn."""

    rope: Rope = Rope()
    sliding_rope: Rope | None = None  # Of layers that see a window; None for the same.

    def __post_init__(self):
        _make(self, rope=Rope, sliding_rope=Rope)


Positions: TypeAlias = Relative | Absolute | Rotary


@checked(named=True)
class Norm:
    """Norms of a stack.

    Attributes:
      kind: "rms": x / rms(x) * scale; "shifted_rms": x / rms(x) * (1 + scale); "layer": LayerNorm.
      epsilon: added to the mean square.
      place: "before" each part and behind all layers; "after" the sum of each part and its input;
        "both" before each part and behind it, before it is added.
      embedding: embedded tokens with their positions are normalised, too.
    """

    kind: Literal["rms", "shifted_rms", "layer"] = "rms"
    epsilon: Rate = 1e-6
    place: Literal["before", "after", "both"] = "before"
    embedding: bool = False


# What some family combines with its positions: kinds and places of norms, biases.
_COMBINED: dict[type, tuple[tuple[str, ...], ...]] = {
    Relative: (("rms",), ("before",), ("none",)),
    Absolute: (("layer",), ("before", "after"), ("all", "not_keys")),
    Rotary: (("rms", "shifted_rms"), ("before", "both"), ("none", "qkv")),
}


@checked(named=True, kw_only=True)
class Stack:
    """A decoder's layers, or an encoder's."""

    d_model: Size  # Width of the residual stream, D.
    num_layers: Annotated[int, _layers]  # 0 in an encoder of a draft, if its target's serves.
    num_heads: Size  # H
    num_kv_heads: Size | None = None  # G, which divides H: heads of queries share each; None for H.
    head_dim: Size  # K. H * K need not equal D, but for absolute positions.
    d_ff: Size  # Hidden width of the feed-forward block, F.
    positions: Positions = Rotary()
    norm: Norm = Norm()
    activation: Activation = "silu"
    gated: bool = True  # The feed-forward block is act(x wi_0) * (x wi_1) instead of act(x wi).
    biases: Literal["none", "qkv", "all", "not_keys"] = "none"  # Of products.
    query_key_norms: bool = False  # Each head's query and key are normalised before they turn.
    query_scalar: Positive | None = None  # Scores are divided by its root; None for head_dim.
    attention_softcap: Positive | None = None  # C: scores are C tanh(score / C).
    # Which layers see a window only, repeated as often as there are layers; empty for none.
    sliding: tuple[bool, ...] = ()
    window: tuple[int, int] | None = None  # Numbers of tokens that they see before, and after.

    def __post_init__(self):
        _make(self, norm=Norm)
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if isinstance(self.positions, Mapping):
            object.__setattr__(self, "positions", _positions(self.positions))
        # JSON has lists.
        given = [truth("Stack.sliding", each) for each in self.sliding]
        object.__setattr__(self, "sliding", _shortest(given, self.num_layers))
        if self.window is not None:
            reach = tuple(whole("Stack.window", each, 0) for each in self.window)
            object.__setattr__(self, "window", reach)
        elif any(self.sliding):
            raise ValueError("Stack.window must be given where layers are sliding.")
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"Stack.num_kv_heads must divide num_heads = {self.num_heads}, got {self.kv_heads}."
            )
        self._check_family()

    def _check_family(self) -> None:
        kind, positions = type(self.positions), self.positions
        own = (self.norm.kind, self.norm.place, self.biases)
        if any(each not in known for each, known in zip(own, _COMBINED[kind], strict=True)):
            raise ValueError(
                f"Stack.norm and biases are as in no family with {kind.__name__} positions: {own}."
            )
        if (self.norm.embedding and kind is not Absolute) or (self.gated and kind is Absolute):
            raise ValueError(
                f"Stack.norm.embedding and gated with {kind.__name__} positions are in no family."
            )
        if isinstance(positions, Absolute):
            if self.inner != self.d_model:
                raise ValueError(
                    f"Stack.num_heads must divide d_model = {self.d_model}, got {self.num_heads}."
                )
            if positions.kind != "learned" and (self.d_model % 2 or self.d_model < 4):
                raise ValueError(
                    "Stack.d_model must be even and at least 4 for sines and cosines, got "
                    f"{self.d_model}."
                )
        elif kind is Rotary and self.head_dim % 2:
            raise ValueError(f"Stack.head_dim must be even, got {self.head_dim}.")
        rotary = self.query_key_norms or self.attention_softcap or self.window
        if kind is not Rotary and (rotary or self.kv_heads != self.num_heads):
            raise ValueError(
                "Stack.num_kv_heads, query_key_norms, attention_softcap and window are of rotary "
                "positions only."
            )

    @property
    def kv_heads(self) -> int:
        """G."""
        return cast(int, self.num_kv_heads)

    @property
    def inner(self) -> int:
        """I = H * K, the width of all queries."""
        return self.num_heads * self.head_dim

    @property
    def query_scale(self) -> float:
        """Factor of queries."""
        return (self.head_dim if self.query_scalar is None else self.query_scalar) ** -0.5

    def biased(self, product: str) -> bool:
        """Whether a product has a bias: "query", "key", "value", "out" or "mlp"."""
        if self.biases == "qkv":
            return product in ("query", "key", "value")
        return self.biases == "all" or (self.biases == "not_keys" and product != "key")

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return bool(self.sliding) and self.sliding[layer % len(self.sliding)]

    def rope_of(self, sliding: bool) -> Rope:
        """Rotation of layers that see a window, or of the others."""
        positions = cast(Rotary, self.positions)
        return (sliding and positions.sliding_rope) or positions.rope


@checked(named=True)
class Logits:
    """The product behind the decoder.

    Attributes:
      tied: it is h @ embedding.T instead of a ``logits_dense``.
      scaled: tied logits are multiplied with D**-0.5 (T5 v1.0).
      bias: a number for each token is added.
      softcap: C: logits are C tanh(logit / C).
    """

    tied: bool = True
    scaled: bool = False
    bias: bool = False
    softcap: Positive | None = None

    def __post_init__(self):
        if self.scaled and not self.tied:
            raise ValueError("Logits.scaled is of tied logits only: scale the kernel instead.")


@checked(named=True, kw_only=True)
class TransformerConfig:
    """A decoder, and with ``encoder`` an encoder-decoder."""

    vocab_size: Size  # Rows of the decoder's embedding, V. May exceed the vocabulary's own size.
    decoder: Stack
    encoder: Stack | None = None  # Sees in both directions.
    logits: Logits = Logits()
    scaled_embedding: bool = False  # Embedded tokens are multiplied with D**0.5.
    # Rows of the encoder's own embedding; None where it has the decoder's.
    encoder_vocab_size: Size | None = None
    # The encoder reads features of sound, so many for each of 2S frames, through two convolutions
    # (Whisper), and no tokens: the number of mel bins.
    features: Size | None = None
    # One softmax over own and encoder's entries, of the same kernels; an encoder's keys do not
    # turn. Else cross-attention is a part of its own.
    merged_attention: bool = False
    # Of a draft that starts from its target's encoding of a text, that one's width: its encoder,
    # which may then have no layers, adds a projection of it to the embedded tokens.
    encoding_width: Size | None = None
    # Tokens that a network with rotary positions was trained on at once; they have no end.
    trained_positions: Size = 8192
    dropout_rate: Rate = 0.0  # In training only.
    dtype: Dtype = "float32"  # Of activations.
    pad_id: int = 0  # Token that outputs are filled up with.
    eos_id: int | None = 1  # None: nothing ends an output but its limit.
    more_eos_ids: Ids = ()  # They, too, end an output.
    # Token before an encoder-decoder's output, or a decoder's where the prompt is empty.
    start_id: int = 0
    # Of an image in a text, and before and behind one: such texts are refused. -1 for none.
    image_ids: Ids = ()

    def __post_init__(self):
        _make(self, decoder=Stack, encoder=Stack, logits=Logits)
        ends = () if self.eos_id is None else (self.eos_id, *self.more_eos_ids)
        ids = {"pad_id": (self.pad_id,), "start_id": (self.start_id,), "eos_id": ends}
        for name, tokens in ids.items():
            for token in tokens:
                whole(f"TransformerConfig.{name}", token, 0, self.vocab_size - 1)
        whole("Stack.num_layers", self.decoder.num_layers, 1, MOST_LAYERS)
        if self.encoder is not None:
            self._check_encoder(self.encoder)
        elif any(
            (self.merged_attention, self.encoding_width, self.encoder_vocab_size, self.features)
        ):
            raise ValueError(
                "TransformerConfig.merged_attention, encoding_width, encoder_vocab_size and "
                "features need an encoder."
            )

        if (self.decoder.biases == "not_keys") != (self.features is not None):
            raise ValueError(
                "TransformerConfig.features and biases of all but keys are together in one family "
                "and apart in none."
            )

    def _check_encoder(self, encoder: Stack) -> None:
        own, other = ((type(s.positions), s.norm, s.biases) for s in (self.decoder, encoder))
        if own != other:
            raise ValueError("TransformerConfig.encoder must have the decoder's kind of norms.")
        if encoder.biases == "qkv":
            raise ValueError("Stack.biases of queries, keys and values are of decoders alone.")
        least = 1 if self.encoding_width is None else 0
        whole("Stack.num_layers", encoder.num_layers, least, MOST_LAYERS)
        if self.features is not None:
            self._check_features(encoder)
        embeds = self.features is None and self.encoder_vocab_size is None
        shares = self.merged_attention or embeds
        if shares and encoder.d_model != self.d_model:
            raise ValueError(
                "TransformerConfig.encoder.d_model must be the decoder's where they share an "
                f"embedding or keys, got {encoder.d_model} and {self.d_model}."
            )

    def _check_features(self, encoder: Stack) -> None:
        if not isinstance(encoder.positions, Absolute) or encoder.norm.embedding:
            raise ValueError(
                "TransformerConfig.features are of encoders with absolute positions and without a "
                "norm of what is embedded."
            )
        if self.encoder_vocab_size is not None or self.encoding_width is not None:
            raise ValueError(
                "TransformerConfig.encoder_vocab_size and encoding_width are of encoders that read "
                "tokens, not features."
            )

    @property
    def input_shape(self) -> tuple[int, int] | None:
        """Frames that an encoder of features reads, and features of each; None for tokens."""
        if self.features is None:
            return None
        assert self.encoder is not None
        return 2 * cast(Absolute, self.encoder.positions).count, self.features

    def listens_as(self, other: TransformerConfig) -> bool:
        """Whether both have encoders of sound, of one shape."""
        ours, theirs = ((each.features, each.encoder) for each in (self, other))
        return self.features is not None and ours == theirs

    @property
    def d_model(self) -> int:
        """Width of the decoder's residual stream, D."""
        return self.decoder.d_model

    @property
    def num_heads(self) -> int:
        """Number of heads of the decoder's queries, H."""
        return self.decoder.num_heads

    @property
    def head_dim(self) -> int:
        """K."""
        return self.decoder.head_dim

    @property
    def d_ff(self) -> int:
        """Hidden width of the decoder's feed-forward block, F."""
        return self.decoder.d_ff

    @property
    def num_decoder_layers(self) -> int:
        """Number of the decoder's layers."""
        return self.decoder.num_layers

    @property
    def num_encoder_layers(self) -> int:
        """Number of an encoder's layers; 0 without one."""
        return 0 if self.encoder is None else self.encoder.num_layers

    @property
    def tied_logits(self) -> bool:
        """Whether logits come from the embedding."""
        return self.logits.tied

    @property
    def reads_prefix(self) -> bool:
        """Whether the output continues a text, and no encoder reads it."""
        return self.encoder is None

    @property
    def encoder_width(self) -> int | None:
        """Width of the encoder's output, as a draft gets it; None where there is no encoder."""
        return None if self.encoder is None else self.encoder.d_model

    @property
    def max_positions(self) -> int | None:
        """Tokens that an input, or a row's prefix and output may have; None for any number."""
        positions = self.decoder.positions
        return positions.count if isinstance(positions, Absolute) else None

    @property
    def stacks(self) -> dict[str, Stack]:
        """Stacks by name, the encoder first if there is one."""
        own = {"decoder": self.decoder}
        return own if self.encoder is None else {"encoder": self.encoder, **own}

    def with_logits(
        self, *, tied: bool | None = None, bias: bool | None = None
    ) -> TransformerConfig:
        """The config with other logits; None keeps a setting."""
        changes = {"tied": tied, "bias": bias}
        changes = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self, logits=dataclasses.replace(self.logits, **changes))


def _positions(fields: Mapping[str, object]) -> Positions:
    for kind in (Relative, Absolute, Rotary):
        if set(fields) == {each.name for each in dataclasses.fields(kind)}:
            return kind(**cast(dict, fields))
    raise ValueError(f"Stack.positions have no fields {', '.join(fields)}.")


def _shortest(pattern: list[bool], layers: int) -> tuple[bool, ...]:
    """The shortest pattern that says the same of so many layers."""
    each = [pattern[i % len(pattern)] for i in range(layers)] if pattern else []
    if not any(each):
        return ()
    return tuple(each[: next(n for n in range(1, layers + 1) if each[n:] == each[:-n])])
