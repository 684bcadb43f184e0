"""What Hugging Face calls the parts of BART and its kin: config.json's fields, and parameters.

Source: the configurations and models of BART, mBART, M2M100, Marian and Pegasus in transformers 5.
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
from specdec.models.bart import network
from specdec.models.bart.config import Activation, BartConfig
from specdec.models.bart.model import BartModel

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
SIZES = {
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "d_model": "d_model",
    "num_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
}
# What a decoder has of its own in config.json, and here has of the encoder's size.
SAME = {
    "decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a model_type says by itself.

    Attributes:
      settings: the fields of a config that it fixes.
      defaults: config.json's fields where it leaves them out.
      flags: what old files say of it, which for another value would be another network.
    """

    architecture: str
    settings: dict[str, Any]
    defaults: dict[str, Any]
    flags: dict[str, bool | int]


def _flags(pre_norm: bool, embedding_norm: bool, static: bool, **more: int) -> dict[str, Any]:
    return {
        "normalize_before": pre_norm, "add_final_layer_norm": pre_norm,
        "normalize_embedding": embedding_norm, "static_position_embeddings": static, **more,
    }  # fmt: skip


_LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
_SINUSOIDAL = {"positions": "sinusoidal", "position_offset": 0, "embedding_norm": False}
_BART = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
KINDS = {
    "bart": Kind(
        "BartForConditionalGeneration", {**_LEARNED, "pre_norm": False, "logits_bias": True},
        _BART, _flags(False, True, False, extra_pos_embeddings=2),
    ),
    "mbart": Kind(
        "MBartForConditionalGeneration", {**_LEARNED, "pre_norm": True, "logits_bias": True},
        {**_BART, "decoder_start_token_id": 0},  # BOS, as in ``generate``.
        _flags(True, True, False, extra_pos_embeddings=2),
    ),
    "m2m_100": Kind(
        "M2M100ForConditionalGeneration",
        {
            "positions": "tensor2tensor", "embedding_norm": False, "pre_norm": True,
            "logits_bias": False,
        },
        {**_BART, "activation_function": "relu", "scale_embedding": True}, {},
    ),
    "marian": Kind(
        "MarianMTModel", {**_SINUSOIDAL, "pre_norm": False, "logits_bias": True},
        {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
        _flags(False, False, True),
    ),
    "pegasus": Kind(
        "PegasusForConditionalGeneration", {**_SINUSOIDAL, "pre_norm": True, "logits_bias": True},
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        _flags(True, False, True),
    ),
}  # fmt: skip

PREFIX, LAYERS = "model.", "decoder.layers."
SHARED, HEAD = "model.shared.weight", "lm_head.weight"
ENCODER, DECODER = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
BIAS = "final_logits_bias"
# Ends of names of tables of sines that older versions of transformers saved, and of versions.
UNUSED = (".embed_positions.weight", ".embed_positions.weights", "coder.version")
# Names a file may hold each stack's embedding under: its own first.
ENCODER_NAMES = (ENCODER, SHARED, DECODER, HEAD)
DECODER_NAMES = (DECODER, SHARED, HEAD, ENCODER)
EMBEDDING_PATH, HEAD_PATH = "token_embedder/embedding", "decoder/logits_dense/kernel"
BIAS_PATH = "decoder/logits_dense/bias"


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> BartConfig:
    """The network that a config.json describes.

    Args:
      model_type: which of :data:`KINDS` it is.
      generation: generation_config.json, None where there is none.

    Raises:
      CheckpointError: a field missing or wrong, or a variant that BartConfig cannot say.
    """
    kind = KINDS[model_type]
    _check_flags(model_type, config)
    sizes: dict[str, Any] = {ours: config.whole(name) for ours, name in SIZES.items()}
    for own, other in SAME.items():
        if config.whole(own) != config.whole(other):
            raise CheckpointError(
                f"{config.source}: {own} must be {other}'s {config.raw[other]}, got "
                f"{config.raw[own]}."
            )
    config = dataclasses.replace(config, raw={**kind.defaults, **config.raw})
    activation: Activation = config.choice("activation_function", ACTIVATIONS, ACTIVATIONS["gelu"])
    encoder_size = None
    if model_type == "marian" and not config.truth("share_encoder_decoder_embeddings", True):
        encoder_size = sizes["vocab_size"]
        if config.has("decoder_vocab_size"):
            sizes["vocab_size"] = config.whole("decoder_vocab_size")
    tokens = TokenFields(config, generation, sizes["vocab_size"])
    pad, ends = tokens.first("pad_token_id"), tokens.ends(kind.defaults["eos_token_id"])
    start = tokens.first("decoder_start_token_id", "bos_token_id")
    settings: dict[str, Any] = kind.settings
    if settings["positions"] == "tensor2tensor":  # Behind the row of config.json's pad.
        (row,) = config.tokens("pad_token_id", sizes["vocab_size"]) or (0,)
        settings = settings | {"position_offset": row + 1}
    try:
        return BartConfig(
            **sizes, **settings,
            num_encoder_layers=config.whole("encoder_layers", 1, MOST_LAYERS),
            num_decoder_layers=config.whole("decoder_layers", 1, MOST_LAYERS),
            activation=activation,
            scaled_embedding=config.truth("scale_embedding", False),
            tied_logits=config.truth("tie_word_embeddings", True),
            encoder_vocab_size=encoder_size,
            dropout_rate=config.fraction("dropout", 0.1),
            pad_id=pad or 0, decoder_start_id=pad or 0 if start is None else start,
            eos_id=ends[0] if ends else None, more_eos_ids=tuple(ends[1:]),
        )  # fmt: skip
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{config.source}: {error}") from None


def _check_flags(model_type: str, config: Fields) -> None:
    for name, value in KINDS[model_type].flags.items():
        found = config.raw.get(name)
        if found is not None and found != value:
            raise CheckpointError(
                f"{config.source}: {name} must be {value} in a {model_type} model, got {found!r}."
            )


def format_config(config: BartConfig, dtype: str) -> dict[str, Any]:
    """The config.json with which transformers computes what ``config`` does.

    Raises:
      CheckpointError: transformers has no such model.
    """
    model_type, kind = _kind_of(config)
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    own: dict[str, Any] = {}
    if config.encoder_vocab_size is not None and model_type == "marian":
        own = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": config.vocab_size}
        sizes["vocab_size"] = config.encoder_vocab_size
    return {
        "architectures": [kind.architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        **sizes,
        **{own: sizes[other] for own, other in SAME.items()},
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "activation_function": activations[config.activation],
        "scale_embedding": config.scaled_embedding,
        "tie_word_embeddings": config.tied_logits,
        "dropout": config.dropout_rate,
        **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
        "torch_dtype": dtype,
        **own,
        **format_generation_config(config),
    }


def _kind_of(config: BartConfig) -> tuple[str, Kind]:
    """The model_type of such a network; one whose file had no bias of the logits is as others."""
    for model_type, kind in KINDS.items():
        settings = {"position_offset": config.pad_id + 1, **kind.settings}
        biased = settings.pop("logits_bias")
        if all(getattr(config, name) == value for name, value in settings.items()) and (
            biased or not config.logits_bias
        ):
            return model_type, kind
    raise CheckpointError(
        f"transformers has no model of positions={config.positions!r}, "
        f"position_offset={config.position_offset}, pre_norm={config.pre_norm}, "
        f"embedding_norm={config.embedding_norm} and logits_bias={config.logits_bias}, with "
        f"pad_id={config.pad_id}."
    )


def format_generation_config(config: BartConfig) -> dict[str, Any]:
    """The generation_config.json that goes with ``format_config``: the special tokens."""
    return {
        "pad_token_id": config.pad_id,
        "eos_token_id": format_ends(config.eos_id, config.more_eos_ids),
        "decoder_start_token_id": config.decoder_start_id,
    }


class Parameter(NamedTuple):
    """A parameter's path in our tree, joined by "/", its shape there, and in files."""

    path: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]

    def turned(self, array: np.ndarray) -> np.ndarray:
        """A file's array as our tree has it, or one of that as files have it."""
        if self.path == BIAS_PATH:
            return array.reshape(self.stored_shape if array.ndim == 1 else self.shape)
        return array.T if self.path.endswith("/kernel") else array


def all_parameters(config: BartConfig) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name."""
    table = {}
    for name, path, shape in _named(config):
        stored = shape[::-1] if path.endswith("/kernel") else shape
        table[name] = Parameter(path, shape, (1, *shape) if path == BIAS_PATH else stored)
    return table


def open_parameters(weights: Weights, config: BartConfig) -> Opened:
    """See :class:`Family`. Which embeddings are one shows in the weights, too."""
    # A model that was saved without its head has no prefix.
    weights = weights.renamed(
        lambda name: name if name in (HEAD, BIAS) else PREFIX + name.removeprefix(PREFIX)
    )
    weights.check_decoder(PREFIX + LAYERS)
    encoder, decoder = (
        next((name for name in names if name in weights), SHARED)
        for names in (ENCODER_NAMES, DECODER_NAMES)
    )

    def same(a: str, b: str) -> bool:
        size = (config.vocab_size, config.d_model)
        table = Parameter(EMBEDDING_PATH, size, size)
        return a == b or np.array_equal(weights.stored(a, table), weights.stored(b, table))

    if config.encoder_vocab_size is None and not same(encoder, decoder):
        config = dataclasses.replace(config, encoder_vocab_size=config.vocab_size)
    if HEAD in weights:
        config = dataclasses.replace(config, tied_logits=same(HEAD, decoder))
    if BIAS not in weights:  # transformers takes zeros then.
        config = dataclasses.replace(config, logits_bias=False)
    found = {SHARED: decoder, DECODER: decoder, ENCODER: encoder}
    table = {found.get(name, name): each for name, each in all_parameters(config).items()}
    weights.check(table, [*ENCODER_NAMES, *(name for name in weights if name.endswith(UNUSED))])
    return config, {each.path: weights.stored(name, each) for name, each in table.items()}


def _named(config: BartConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, our path, our shape)."""
    width, size = config.d_model, config.encoder_vocab_size
    yield SHARED if size is None else DECODER, EMBEDDING_PATH, (config.vocab_size, width)
    if size is not None:
        yield ENCODER, "encoder_token_embedder/embedding", (size, width)
    for stack in ("encoder", "decoder"):
        if config.positions == "learned":
            shape = (config.position_offset + config.max_positions, width)
            path = f"{stack}_position_embedder/embedding"
            yield f"model.{stack}.embed_positions.weight", path, shape
        yield from _stack(config, stack)
    if not config.tied_logits:
        yield HEAD, HEAD_PATH, (width, config.vocab_size)
    if config.logits_bias:
        yield BIAS, BIAS_PATH, (config.vocab_size,)


def _stack(config: BartConfig, stack: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    width, inner = config.d_model, config.d_ff
    attentions = [("self_attn", "self_attention", "self_attention")]
    depth = config.num_encoder_layers
    if stack == "decoder":
        attentions.append(("encoder_attn", "encoder_decoder_attention", "cross_attention"))
        depth = config.num_decoder_layers
    if config.embedding_norm:
        yield from _norm(f"model.{stack}.layernorm_embedding", f"{stack}/embedding_norm", width)
    for i in range(depth):
        theirs, ours = f"model.{stack}.layers.{i}", f"{stack}/layers_{i}"
        for name, part, norm in attentions:
            for letter, kernel in zip("qkv", ("query", "key", "value"), strict=True):
                path = f"{ours}/{part}/{kernel}"
                yield from _dense(f"{theirs}.{name}.{letter}_proj", path, width, width)
            yield from _dense(f"{theirs}.{name}.out_proj", f"{ours}/{part}/out", width, width)
            yield from _norm(f"{theirs}.{name}_layer_norm", f"{ours}/{norm}_layer_norm", width)
        yield from _dense(f"{theirs}.fc1", f"{ours}/mlp/wi", width, inner)
        yield from _dense(f"{theirs}.fc2", f"{ours}/mlp/wo", inner, width)
        yield from _norm(f"{theirs}.final_layer_norm", f"{ours}/mlp_layer_norm", width)
    if config.pre_norm:
        yield from _norm(f"model.{stack}.layer_norm", f"{stack}/{stack}_norm", width)


def _norm(name: str, path: str, width: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{path}/scale", (width,)
    yield f"{name}.bias", f"{path}/bias", (width,)


def _dense(
    name: str, path: str, size: int, features: int
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{path}/kernel", (size, features)
    yield f"{name}.bias", f"{path}/bias", (features,)


FAMILY = Family(
    config=BartConfig,
    network=network,
    model=BartModel,
    model_types={
        "bart": "DistilBART",
        "mbart": "mBART-50",
        "m2m_100": "NLLB-200",
        "marian": "OPUS-MT",
        "pegasus": "",
    },
    public={
        "bart-SIZE*": "bart_SIZE",
        "distilbart-SIZE-SIZE-SIZE": "distilbart_SIZE_SIZE_SIZE",
        "mbart-SIZE*": "mbart_SIZE",
        "m2m100_SIZE": "m2m100_SIZE",
        "nllb-200-distilled-SIZE": "nllb_distilled_SIZE",
        "nllb-200-SIZE": "nllb_SIZE",
        "opus-mt-tc-big*": "marian_big",
        "opus-mt*": "marian_base",
        "marian-SIZE": "marian_SIZE",
        "pegasus-SIZE*": "pegasus_SIZE",
    },
    tokenizer_class=None,
    parse_config=parse_config,
    format_config=format_config,
    format_generation_config=format_generation_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
