"""What Hugging Face calls T5's parts: config.json's fields, and parameters against T5X's tree.

Source: ``T5Config``, ``MT5Config``, ``UMT5Config`` and their ``ForConditionalGeneration`` in
transformers 5, and ``t5x.examples.t5.network``. A draft that starts from its target's encoding has
what transformers does not know: the field ``encoding_width`` and the parameter
``encoder.input_projection.weight``, whose product with the encoding is added to embedded tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from specdec.checkpoints.parameters import CheckpointError
from specdec.models.t5.config import Activation, T5Config

DEFAULT_FEED_FORWARD = {"t5": "relu", "mt5": "gated-gelu", "umt5": "gated-gelu"}
# "gated-gelu" is the tanh approximation, "gelu" on its own the exact error function (unsupported).
FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False), "silu": ("silu", False), "gelu_new": ("gelu", False),
    "gated-relu": ("relu", True), "gated-silu": ("silu", True),
    "gated-gelu": ("gelu", True), "gated-gelu_new": ("gelu", True),
}  # fmt: skip
# What T5Config has too: sizes, by both names, what has a default, and the special tokens.
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "num_encoder_layers": "num_layers",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "d_ff": "d_ff",
}
OPTIONS: dict[str, Any] = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "dropout_rate": 0.1,
}
TOKENS = {
    "pad_id": "pad_token_id",
    "eos_id": "eos_token_id",
    "decoder_start_id": "decoder_start_token_id",
}

EMBEDDING, EMBEDDING_PATH = "shared.weight", "token_embedder/embedding"
HEAD, HEAD_PATH = "lm_head.weight", "decoder/logits_dense/kernel"
# Names a file may hold the embedding under, in the order transformers falls back on them.
EMBEDDING_NAMES = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD)
# Written by old versions of transformers, used by none: cross-attention has no position bias.
UNUSED_NAMES = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def parse_config(raw: Mapping[str, Any], source: str) -> T5Config:
    """The network that a config.json describes.

    ``tied_logits`` tells whether logits are scaled by d_model**-0.5. Those are tied to the
    embedding in every public checkpoint, but whether they are is a matter of the weights.
    ``raw`` is config.json under generation_config.json, if there is one; ``source`` its name.

    Raises:
      CheckpointError: a size missing, or a variant that T5Config cannot say.
    """
    model_type = raw["model_type"]
    feed_forward = raw.get("feed_forward_proj", DEFAULT_FEED_FORWARD[model_type])
    if feed_forward not in FEED_FORWARDS:
        raise CheckpointError(
            f"{source}: feed_forward_proj {feed_forward!r} is not supported; "
            f"it must be one of {', '.join(FEED_FORWARDS)}."
        )
    activation, gated = FEED_FORWARDS[feed_forward]
    # A decoder starts from the pad unless told otherwise.
    pad = token_ids(raw, "pad_token_id", 0, source)
    start = token_ids(raw, "decoder_start_token_id", pad[0], source)
    eos = token_ids(raw, "eos_token_id", 1, source, several=True)
    tokens: dict[str, Any] = {"pad_id": pad[0], "decoder_start_id": start[0], "eos_id": eos[0]}
    # transformers 5 writes ``scale_decoder_outputs``; before that ``tie_word_embeddings`` decided.
    # Its mT5 never scales and its UMT5 always does, whatever ``tie_word_embeddings`` is.
    scaled = raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings") is not False)
    scaled = model_type == "umt5" or (model_type != "mt5" and scaled)
    try:
        return T5Config(
            **{ours: raw[theirs] for ours, theirs in SIZES.items()},
            **{name: raw.get(name, default) for name, default in OPTIONS.items()},
            **tokens, more_eos_ids=tuple(eos[1:]),
            num_decoder_layers=raw.get("num_decoder_layers") or raw["num_layers"],
            activation=activation, gated=gated, tied_logits=bool(scaled),
            encoding_width=raw.get("encoding_width"),
            relative_bias_in_every_layer=model_type == "umt5",
        )  # fmt: skip
    except KeyError as error:
        raise CheckpointError(f"{source}: {error.args[0]} is missing; add it.") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from None


def token_ids(
    raw: Mapping[str, Any], name: str, default: int, source: str, several: bool = False
) -> list[int]:
    """Token ids by name: one, unless there may be ``several``.

    Raises:
      CheckpointError: they are none.
    """
    value = default if raw.get(name) is None else raw[name]
    values = value if isinstance(value, list) else [value]
    numbers = all(isinstance(each, int) and not isinstance(each, bool) for each in values)
    if not values or not numbers or (len(values) > 1 and not several):
        asked = "one token id, or a list of them" if several else "one token id"
        raise CheckpointError(f"{source}: {name} must be {asked}, got {value!r}.")
    return values


def format_config(config: T5Config, dtype: str) -> dict[str, Any]:
    """The config.json with which transformers computes what ``config`` does (4 and 5 alike).

    ``dtype`` is the stored weights'; the config's, that of activations, has no counterpart.
    """
    kind = (config.activation, config.gated)
    own = {} if config.encoding_width is None else {"encoding_width": config.encoding_width}
    model = "UMT5" if config.relative_bias_in_every_layer else "T5"
    return {
        "architectures": [f"{model}ForConditionalGeneration"],
        "model_type": model.lower(),
        "is_encoder_decoder": True,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        **{name: getattr(config, name) for name in OPTIONS},
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": next(name for name in FEED_FORWARDS if FEED_FORWARDS[name] == kind),
        "tie_word_embeddings": config.tied_logits,
        "scale_decoder_outputs": config.tied_logits,
        "torch_dtype": dtype,
        **own,
        **format_generation_config(config),
    }


def format_generation_config(config: T5Config) -> dict[str, Any]:
    """The generation_config.json that goes with ``format_config``: the special tokens."""
    tokens: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in TOKENS.items()}
    if config.more_eos_ids:
        tokens["eos_token_id"] = [config.eos_id, *config.more_eos_ids]
    return tokens


def head_factor(config: T5Config) -> float:
    """What a separate ``lm_head.weight`` has beyond the logits' kernel, in files we write.

    transformers 5 scales the logits of every UMT5 by d_model**-0.5.
    """
    scaled = config.relative_bias_in_every_layer and not config.tied_logits
    return config.d_model**0.5 if scaled else 1.0


class Parameter(NamedTuple):
    """A parameter's path in T5X's tree, joined by "/", and its shape there.

    Kernels are [in, out], position biases [heads, buckets] and the embedding [V, D].
    """

    path: str
    shape: tuple[int, ...]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Its shape in Hugging Face's files: transposed, but for the embedding."""
        return self.shape if self.path == EMBEDDING_PATH else self.shape[::-1]

    def turned(self, array: np.ndarray) -> np.ndarray:
        """One library's array as the other has it."""
        return array if self.path == EMBEDDING_PATH else array.T


def all_parameters(config: T5Config) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name."""
    size = (config.vocab_size, config.d_model)
    table = {EMBEDDING: Parameter(EMBEDDING_PATH, size)}
    for stack in ("encoder", "decoder"):
        table |= {name: Parameter(path, shape) for name, path, shape in _stack(config, stack)}
    if not config.tied_logits:
        table[HEAD] = Parameter(HEAD_PATH, size[::-1])
    return table


def parameter_shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network, by its path in T5X's tree."""
    return dict(all_parameters(config).values())


def _stack(config: T5Config, stack: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, T5X's path, T5X's shape) for one stack."""
    if stack == "encoder":
        depth = config.num_encoder_layers
        attentions = [("SelfAttention", "attention", "attention")]
    else:
        depth = config.num_decoder_layers
        attentions = [
            ("SelfAttention", "self_attention", "self_attention"),
            ("EncDecAttention", "encoder_decoder_attention", "cross_attention"),
        ]
    width, inner = config.d_model, config.num_heads * config.head_dim
    biases = "SelfAttention.relative_attention_bias.weight"
    table = (config.num_heads, config.relative_attention_num_buckets)

    if stack == "encoder" and config.encoding_width is not None:
        projection = (config.encoding_width, width)
        yield "encoder.input_projection.weight", "encoder/input_projection/kernel", projection
    for i in range(depth):
        block, layer = f"{stack}.block.{i}.layer", f"{stack}/layers_{i}"
        if i == 0 or config.relative_bias_in_every_layer:
            owner = layer if config.relative_bias_in_every_layer else stack
            yield f"{block}.0.{biases}", f"{owner}/relpos_bias/rel_embedding", table
        for j, (theirs, ours, norm) in enumerate(attentions):
            yield f"{block}.{j}.layer_norm.weight", f"{layer}/pre_{norm}_layer_norm/scale", (width,)
            for letter, name in zip("qkvo", ("query", "key", "value", "out"), strict=True):
                shape = (inner, width) if name == "out" else (width, inner)
                path = f"{layer}/{ours}/{name}/kernel"
                yield f"{block}.{j}.{theirs}.{letter}.weight", path, shape
        j = len(attentions)
        yield f"{block}.{j}.layer_norm.weight", f"{layer}/pre_mlp_layer_norm/scale", (width,)
        for name in ("wi_0", "wi_1", "wo") if config.gated else ("wi", "wo"):
            shape = (config.d_ff, width) if name == "wo" else (width, config.d_ff)
            yield f"{block}.{j}.DenseReluDense.{name}.weight", f"{layer}/mlp/{name}/kernel", shape
    yield f"{stack}.final_layer_norm.weight", f"{stack}/{stack}_norm/scale", (width,)
