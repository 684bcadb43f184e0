"""What Hugging Face calls T5's parts: config.json's fields, and parameters against T5X's tree.

Source: ``T5Config``, ``MT5Config``, ``UMT5Config`` and their ``ForConditionalGeneration`` in
transformers 5, and ``t5x.examples.t5.network``. A draft that starts from its target's encoding has
what transformers does not know: the field ``encoding_width`` and the parameter
``encoder.input_projection.weight``, whose product with the encoding is added to embedded tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from specdec.arguments import MOST_LAYERS
from specdec.checkpoints.families.base import Family, Opened, Weights
from specdec.checkpoints.fields import Fields, TokenFields, format_ends
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.t5 import network
from specdec.models.t5.config import Activation, T5Config
from specdec.models.t5.model import T5Model

DEFAULT_FEED_FORWARD = {"t5": "relu", "mt5": "gated-gelu", "umt5": "gated-gelu"}
# "gated-gelu" is the tanh approximation, "gelu" on its own the exact error function (unsupported).
FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False), "silu": ("silu", False), "gelu_new": ("gelu", False),
    "gated-relu": ("relu", True), "gated-silu": ("silu", True),
    "gated-gelu": ("gelu", True), "gated-gelu_new": ("gelu", True),
}  # fmt: skip
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "silu": "silu", "swish": "silu", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
}  # fmt: skip
# What T5Config has too: sizes, by both names, and what has a default.
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "d_ff": "d_ff",
}
BIASES = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
RATES = {"layer_norm_epsilon": 1e-6, "dropout_rate": 0.1}

EMBEDDING, EMBEDDING_PATH = "shared.weight", "token_embedder/embedding"
HEAD, HEAD_PATH = "lm_head.weight", "decoder/logits_dense/kernel"
# Names a file may hold the embedding under, in the order transformers falls back on them.
EMBEDDING_NAMES = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD)
# Written by old versions of transformers, used by none: cross-attention has no position bias.
UNUSED_NAMES = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> T5Config:
    """The network that a config.json describes.

    ``tied_logits`` tells whether logits are scaled by d_model**-0.5. Those are tied to the
    embedding in every public checkpoint, but whether they are is a matter of the weights.

    Args:
      generation: generation_config.json, None where there is none.

    Raises:
      CheckpointError: a field missing or wrong, or a variant that T5Config cannot say.
    """
    proj = FEED_FORWARDS[DEFAULT_FEED_FORWARD[model_type]]
    activation, gated = config.choice("feed_forward_proj", FEED_FORWARDS, proj)
    least = 0 if config.has("encoding_width") else 1
    sizes: dict[str, Any] = {ours: config.whole(name) for ours, name in SIZES.items()}
    options: dict[str, Any] = {
        name: config.whole(name, default=default) for name, default in BIASES.items()
    }
    options |= {name: config.fraction(name, default) for name, default in RATES.items()}
    layers = config.whole("num_layers", least, MOST_LAYERS)
    has_depth = config.has("num_decoder_layers")
    tokens = TokenFields(config, generation, sizes["vocab_size"])
    pad, ends = tokens.first("pad_token_id") or 0, tokens.ends(1)
    start = tokens.first("decoder_start_token_id", "bos_token_id")
    try:
        return T5Config(
            **sizes, **options,
            num_encoder_layers=layers,
            num_decoder_layers=(
                config.whole("num_decoder_layers", 1, MOST_LAYERS) if has_depth else layers
            ),
            # transformers takes these two from the file, where it has them.
            activation=config.choice("dense_act_fn", ACTIVATIONS, activation),
            gated=config.truth("is_gated_act", gated),
            tied_logits=model_type != "mt5" and _is_scaled(config),
            relative_bias_in_every_layer=model_type == "umt5",
            encoding_width=config.whole("encoding_width") if least == 0 else None,
            pad_id=pad, decoder_start_id=pad if start is None else start,
            eos_id=ends[0] if ends else None, more_eos_ids=tuple(ends[1:]),
        )  # fmt: skip
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{config.source}: {error}") from None


def _is_scaled(config: Fields) -> bool:
    """transformers 5 writes ``scale_decoder_outputs``; else ``tie_word_embeddings`` decides.

    mT5 has neither: its logits are never scaled.
    """
    tied = config.truth("tie_word_embeddings", True)
    return config.truth("scale_decoder_outputs", tied)


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
        **{name: getattr(config, name) for name in (*BIASES, *RATES)},
        "num_layers": config.num_encoder_layers,
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
    return {
        "pad_token_id": config.pad_id,
        "eos_token_id": format_ends(config.eos_id, config.more_eos_ids),
        "decoder_start_token_id": config.decoder_start_id,
    }


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


def open_parameters(weights: Weights, config: T5Config) -> Opened:
    """See :class:`Family`. Logits follow transformers 5.24.

    They come from ``lm_head.weight`` where the file has one and from the embedding otherwise,
    scaled by d_model**-0.5 as config.json asks. A head that is both separate and scaled has the
    factor multiplied into its kernel.

    Raises:
      CheckpointError: encoder and decoder have different embeddings.
    """
    scaled = config.tied_logits
    layers = all_parameters(dataclasses.replace(config, tied_logits=False))
    shared, head = layers.pop(EMBEDDING), layers.pop(HEAD)
    weights.check_decoder("decoder.block.")
    found = [name for name in EMBEDDING_NAMES if name in weights]
    embedding_name = found[0] if found else EMBEDDING
    weights.check([embedding_name, *layers], [*EMBEDDING_NAMES, *UNUSED_NAMES])
    embedding = weights.stored(embedding_name, shared)

    def is_embedding(name: str) -> bool:
        return name == embedding_name or np.array_equal(weights.stored(name, shared), embedding)

    for name in found:
        if name != HEAD and not is_embedding(name):
            raise CheckpointError(
                f"{weights.directory}: {name} differs from {embedding_name}; T5 shares one "
                "embedding between encoder and decoder, and a checkpoint with several cannot be "
                "loaded."
            )
    # A checkpoint without a head has the embedding for one.
    head_name = HEAD if HEAD in weights else embedding_name
    config = dataclasses.replace(config, tied_logits=scaled and is_embedding(head_name))
    params = {shared.path: embedding}
    if not config.tied_logits:
        params[head.path] = weights.stored(head_name, head, config.d_model**-0.5 if scaled else 1.0)
    return config, params | {each.path: weights.stored(n, each) for n, each in layers.items()}


FAMILY = Family(
    config=T5Config,
    network=network,
    model=T5Model,
    model_types={
        "t5": "Flan-T5, UL2, MADLAD-400, ByT5, CodeT5+ 220m and 770m",
        "mt5": "Aya-101",
        "umt5": "",
    },
    public={
        "t5-v1_1-SIZE": "t5_1_1_SIZE",
        "flan-t5-SIZE": "t5_1_1_SIZE",
        "t5-SIZE": "t5_1_0_SIZE",
    },
    tokenizer_class="T5Tokenizer",
    parse_config=parse_config,
    format_config=format_config,
    format_generation_config=format_generation_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
