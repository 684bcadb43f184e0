"""Names of BART's and its kin's config fields and parameters in Hugging Face's files.

Source: the configurations and models of BART, mBART, M2M100, Marian and Pegasus in transformers 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from specdec.checkpoints.families.base import (
    Family,
    Opened,
    Weights,
    dense,
    norm,
    turned_kernels,
)
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.checkpoints.hf_files import Parameter
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.bart import network
from specdec.models.bart.config import Activation, BartConfig
from specdec.models.bart.model import BartModel

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
# Fields of BartConfig: their names in config.json.
NAMES = {
    "vocab_size": "vocab_size", "max_positions": "max_position_embeddings", "d_model": "d_model",
    "num_heads": "encoder_attention_heads", "d_ff": "encoder_ffn_dim",
    "num_encoder_layers": "encoder_layers", "num_decoder_layers": "decoder_layers",
    "scaled_embedding": "scale_embedding", "tied_logits": "tie_word_embeddings",
    "dropout_rate": "dropout",
}  # fmt: skip
# Fields of the decoder in config.json that must be equal to the encoder's.
SAME = {
    "decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim",
}  # fmt: skip


class Kind(NamedTuple):
    """Facts about a model_type: transformers' class, and fields of a config."""

    architecture: str
    settings: dict[str, Any]


_LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
_SINUSOIDAL = {"positions": "sinusoidal", "position_offset": 0, "embedding_norm": False}
KINDS = {
    "bart": Kind(
        "BartForConditionalGeneration", {**_LEARNED, "pre_norm": False, "logits_bias": True}
    ),
    "mbart": Kind(
        "MBartForConditionalGeneration", {**_LEARNED, "pre_norm": True, "logits_bias": True}
    ),
    "m2m_100": Kind(
        "M2M100ForConditionalGeneration",
        {
            "positions": "tensor2tensor", "embedding_norm": False, "pre_norm": True,
            "logits_bias": False,
        },
    ),
    "marian": Kind("MarianMTModel", {**_SINUSOIDAL, "pre_norm": False, "logits_bias": True}),
    "pegasus": Kind(
        "PegasusForConditionalGeneration", {**_SINUSOIDAL, "pre_norm": True, "logits_bias": True}
    ),
}  # fmt: skip

PREFIX, LAYERS = "model.", "decoder.layers."
SHARED, HEAD = "model.shared.weight", "lm_head.weight"
ENCODER, DECODER = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
BIAS = "final_logits_bias"
# A table of sines, with the ends of its name; transformers reads the first.
POSITIONS = "model.{}.embed_positions.weight"
# Names a file may hold each stack's embedding under: its own first.
ENCODER_NAMES = (ENCODER, SHARED, DECODER, HEAD)
DECODER_NAMES = (DECODER, SHARED, HEAD, ENCODER)
EMBEDDING_PATH, HEAD_PATH = "token_embedder/embedding", "decoder/logits_dense/kernel"
BIAS_PATH = "decoder/logits_dense/bias"


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> BartConfig:
    """See :class:`Family`."""
    settings = dict(KINDS[model_type].settings)
    if model_type != "m2m_100":  # Old files say so of the network.
        config.check({
            **dict.fromkeys(("normalize_before", "add_final_layer_norm"), settings["pre_norm"]),
            "normalize_embedding": settings["embedding_norm"],
            "static_position_embeddings": settings["positions"] == "sinusoidal",
            **({"extra_pos_embeddings": 2} if settings["positions"] == "learned" else {}),
        })  # fmt: skip
    for own, other in SAME.items():
        if config[own] != config[other]:
            config.refuse(own, f"{other}'s {config[other]}")
    given = {ours: config[theirs] for ours, theirs in NAMES.items()}
    size = config.size("vocab_size")
    if not config.get("share_encoder_decoder_embeddings", True):  # A Marian's.
        settings["encoder_vocab_size"] = size
        given["vocab_size"] = size = config.size("decoder_vocab_size")
    if settings["positions"] == "tensor2tensor":  # Behind the row of config.json's pad.
        pad = config["pad_token_id"]
        settings["position_offset"] = 1 if pad is None else pad + 1
    return BartConfig(
        **given, **settings,
        activation=config.choice("activation_function", ACTIVATIONS),
        **special_tokens(config, generation, size, encodes=True),
    )  # fmt: skip


def format_config(config: BartConfig) -> dict[str, Any]:
    """See :class:`Family`.

    Raises:
      CheckpointError: transformers has no such model.
    """
    model_type, kind = _kind_of(config)
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    found = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    if config.encoder_vocab_size is not None and model_type == "marian":
        found |= {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": config.vocab_size,
            "vocab_size": config.encoder_vocab_size,
        }  # fmt: skip
    return {
        "architectures": [kind.architecture],
        "model_type": model_type,
        "is_encoder_decoder": True,
        **found,
        **{own: found[other] for own, other in SAME.items()},
        "activation_function": activations[config.activation],
        **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
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


def all_parameters(config: BartConfig) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name."""
    table = turned_kernels(_named(config))
    if BIAS in table:
        size = (config.vocab_size,)
        table[BIAS] = Parameter(BIAS_PATH, size, (1, *size), False)
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
        table = Parameter(EMBEDDING_PATH, size, size, False)
        return a == b or np.array_equal(weights.stored(a, table), weights.stored(b, table))

    if config.encoder_vocab_size is None and not same(encoder, decoder):
        config = dataclasses.replace(config, encoder_vocab_size=config.vocab_size)
    if HEAD in weights:
        config = dataclasses.replace(config, tied_logits=same(HEAD, decoder))
    if BIAS not in weights:  # transformers takes zeros then.
        config = dataclasses.replace(config, logits_bias=False)
    if config.positions == "sinusoidal" and _has_other_positions(weights, config):
        config = dataclasses.replace(config, positions="learned")
    found = {SHARED: decoder, DECODER: decoder, ENCODER: encoder}
    table = {found.get(name, name): each for name, each in all_parameters(config).items()}
    positions = [
        f"{POSITIONS.format(stack)}{s}" for stack in ("encoder", "decoder") for s in ("", "s")
    ]
    weights.check(table, [*ENCODER_NAMES, *positions])
    return config, {each.path: weights.stored(name, each) for name, each in table.items()}


def _has_other_positions(weights: Weights, config: BartConfig) -> bool:
    """Whether tables of sines in a file are others than the computed ones, but for their rounding.

    transformers takes them from the file.
    """
    size = (config.max_positions, config.d_model)
    table = Parameter("", size, size, False)
    for name in map(POSITIONS.format, ("encoder", "decoder")):
        if name in weights:
            stored = weights.stored(name, table)
            few_bits = weights.files[name][2] in ("F16", "BF16")
            computed = network.sinusoids(config)
            if not np.allclose(stored, computed, rtol=0, atol=0.01 if few_bits else 1e-4):
                return True
    return False


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
            yield POSITIONS.format(stack), path, shape
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
        yield from norm(f"model.{stack}.layernorm_embedding", f"{stack}/embedding_norm", width)
    for i in range(depth):
        theirs, ours = f"model.{stack}.layers.{i}", f"{stack}/layers_{i}"
        for name, part, before in attentions:
            for letter, kernel in zip("qkv", ("query", "key", "value"), strict=True):
                path = f"{ours}/{part}/{kernel}"
                yield from dense(f"{theirs}.{name}.{letter}_proj", path, width, (width,))
            yield from dense(f"{theirs}.{name}.out_proj", f"{ours}/{part}/out", width, (width,))
            yield from norm(f"{theirs}.{name}_layer_norm", f"{ours}/{before}_layer_norm", width)
        yield from dense(f"{theirs}.fc1", f"{ours}/mlp/wi", width, (inner,))
        yield from dense(f"{theirs}.fc2", f"{ours}/mlp/wo", inner, (width,))
        yield from norm(f"{theirs}.final_layer_norm", f"{ours}/mlp_layer_norm", width)
    if config.pre_norm:
        yield from norm(f"model.{stack}.layer_norm", f"{stack}/{stack}_norm", width)


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
    names=NAMES | {"decoder_start_id": "decoder_start_token_id"},
    format_config=format_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
