"""BART and its kin in Hugging Face's files.

Source: the configurations and models of BART, mBART, M2M100, Marian and Pegasus in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from specdec.checkpoints.families.base import (
    EMBEDDING_PATH,
    Family,
    Names,
    Opened,
    Weights,
    named_parameters,
    projections,
)
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.checkpoints.hf_files import Parameter
from specdec.models.bart.config import BartConfig
from specdec.models.transformer.arithmetic import sinusoids
from specdec.models.transformer.config import Absolute, Activation, Stack, TransformerConfig

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
# Settings of BartConfig: their names in config.json.
FIELDS = {
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
    """Facts about a model_type: transformers' class, and settings of BartConfig."""

    architecture: str
    positions: Literal["learned", "sinusoidal", "tensor2tensor"]
    offset: int | None  # None: behind the row of config.json's pad.
    pre_norm: bool
    embedding_norm: bool
    logits_bias: bool = True


KINDS = {
    "bart": Kind("BartForConditionalGeneration", "learned", 2, False, True),
    "mbart": Kind("MBartForConditionalGeneration", "learned", 2, True, True),
    "m2m_100": Kind("M2M100ForConditionalGeneration", "tensor2tensor", None, True, False, False),
    "marian": Kind("MarianMTModel", "sinusoidal", 0, False, False),
    "pegasus": Kind("PegasusForConditionalGeneration", "sinusoidal", 0, True, False),
}
PREFIX, HEAD, BIAS = "model.", "lm_head.weight", "final_logits_bias"
SHARED = "model.shared.weight"
ENCODER, DECODER = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
# A table of sines, with the ends of its name; transformers reads the first.
POSITIONS = "model.{}.embed_positions.weight"
# Names a file may hold each stack's embedding under: its own first.
ENCODER_NAMES = (ENCODER, SHARED, DECODER, HEAD)
DECODER_NAMES = (DECODER, SHARED, HEAD, ENCODER)
_STACKS = ("encoder", "decoder")


_LETTERS = ("q_proj", "k_proj", "v_proj", "out_proj")
# Names that Whisper has, too: of stacks, their layers, and what is in these.
MODULES = {
    ours.format(stack): theirs.format(stack)
    for stack in _STACKS
    for ours, theirs in {
        "{}_position_embedder": "model.{}.embed_positions",
        "{0}/{0}_norm": "model.{}.layer_norm",
    }.items()
}
LAYERS = {stack: f"model.{stack}.layers.{{}}" for stack in _STACKS}
PARTS = {
    "self_attention_layer_norm": "self_attn_layer_norm",
    "cross_attention_layer_norm": "encoder_attn_layer_norm",
    "mlp_layer_norm": "final_layer_norm", "mlp/wi": "fc1", "mlp/wo": "fc2",
    **projections("self_attention", "self_attn.{}", _LETTERS),
    **projections("encoder_decoder_attention", "encoder_attn.{}", _LETTERS),
}  # fmt: skip


def names(config: TransformerConfig) -> Names:
    """See :class:`Family`."""
    own = config.encoder_vocab_size is not None
    modules = {
        "token_embedder": "model.decoder.embed_tokens" if own else "model.shared",
        "encoder_token_embedder": "model.encoder.embed_tokens", "decoder/logits_dense": "lm_head",
        **MODULES,
        **{f"{stack}/embedding_norm": f"model.{stack}.layernorm_embedding" for stack in _STACKS},
    }  # fmt: skip
    leaves = {"decoder/logits_dense/bias": (BIAS, (1, config.vocab_size))}
    return Names(modules=modules, layers=LAYERS, parts=PARTS, leaves=leaves)


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
    """See :class:`Family`."""
    kind = KINDS[model_type]
    if model_type != "m2m_100":  # Old files say so of the network.
        config.check({
            **dict.fromkeys(("normalize_before", "add_final_layer_norm"), kind.pre_norm),
            "normalize_embedding": kind.embedding_norm,
            "static_position_embeddings": kind.positions == "sinusoidal",
            **({"extra_pos_embeddings": 2} if kind.positions == "learned" else {}),
        })  # fmt: skip
    for own, other in SAME.items():
        if config[own] != config[other]:
            config.refuse(own, f"{other}'s {config[other]}")
    given = {ours: config[theirs] for ours, theirs in FIELDS.items()}
    for name in ("encoder_layers", "decoder_layers", "encoder_attention_heads", "d_model"):
        config.size(name)
    size, encoder_size, offset = config.size("vocab_size"), None, kind.offset
    if not config.get("share_encoder_decoder_embeddings", True):  # A Marian's.
        encoder_size = size
        given["vocab_size"] = size = config.size("decoder_vocab_size")
    if offset is None:
        pad = config["pad_token_id"]
        offset = 1 if pad is None else pad + 1
    tokens = special_tokens(config, generation, size, encodes=True)
    return BartConfig(
        **given, positions=kind.positions, position_offset=offset, pre_norm=kind.pre_norm,
        embedding_norm=kind.embedding_norm, logits_bias=kind.logits_bias,
        encoder_vocab_size=encoder_size,
        activation=config.choice("activation_function", ACTIVATIONS),
        decoder_start_id=tokens.pop("start_id"), **tokens,
    )  # fmt: skip


def model_type_of(config: TransformerConfig) -> str | None:
    """See :class:`Family`; one whose file had no bias of the logits is as others."""
    stack, encoder, positions = config.decoder, config.encoder, config.decoder.positions
    if encoder is None or config.features is not None or not isinstance(positions, Absolute):
        return None
    if dataclasses.replace(stack, num_layers=encoder.num_layers) != encoder:
        return None
    own = (positions.kind, positions.offset, stack.norm.place == "before", stack.norm.embedding)
    for model_type, kind in KINDS.items():
        offset = config.pad_id + 1 if kind.offset is None else kind.offset
        wanted = (kind.positions, offset, kind.pre_norm, kind.embedding_norm)
        if own == wanted and (kind.logits_bias or not config.logits.bias):
            return model_type
    return None


def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
    """See :class:`Family`."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    stack, sizes = config.decoder, {"vocab_size": config.vocab_size}
    if config.encoder_vocab_size is not None and model_type == "marian":
        sizes = {
            "share_encoder_decoder_embeddings": False, "decoder_vocab_size": config.vocab_size,
            "vocab_size": config.encoder_vocab_size,
        }  # fmt: skip
    return {
        "architectures": [KINDS[model_type].architecture], "model_type": model_type,
        "is_encoder_decoder": True, **sizes, "d_model": stack.d_model,
        "max_position_embeddings": config.max_positions,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), stack.num_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), stack.d_ff),
        "encoder_layers": config.num_encoder_layers, "decoder_layers": stack.num_layers,
        "scale_embedding": config.scaled_embedding, "tie_word_embeddings": config.tied_logits,
        "dropout": config.dropout_rate, "activation_function": activations[stack.activation],
        **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    }  # fmt: skip


def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
    """See :class:`Family`. Which embeddings are one shows in the weights, too."""
    # A model that was saved without its head has no prefix.
    weights = weights.renamed(
        lambda name: name if name in (HEAD, BIAS) else PREFIX + name.removeprefix(PREFIX)
    )
    weights.check_decoder("model.decoder.layers.")
    encoder, decoder = (
        next((name for name in among if name in weights), SHARED)
        for among in (ENCODER_NAMES, DECODER_NAMES)
    )

    def same(a: str, b: str) -> bool:
        size = (config.vocab_size, config.d_model)
        table = Parameter(EMBEDDING_PATH, size, size, False)
        return a == b or np.array_equal(weights.stored(a, table), weights.stored(b, table))

    if config.encoder_vocab_size is None and not same(encoder, decoder):
        config = dataclasses.replace(config, encoder_vocab_size=config.vocab_size)
    if HEAD in weights:
        config = config.with_logits(tied=same(HEAD, decoder))
    if BIAS not in weights:  # transformers takes zeros then.
        config = config.with_logits(bias=False)
    if _has_other_positions(weights, config):
        config = dataclasses.replace(
            config, decoder=_learned(config.decoder),
            encoder=_learned(config.encoder) if config.encoder else None,
        )  # fmt: skip
    found = {SHARED: decoder, DECODER: decoder, ENCODER: encoder}
    named = named_parameters(config, names(config))
    table = {found.get(name, name): each for name, each in named.items()}
    positions = [f"{POSITIONS.format(stack)}{s}" for stack in _STACKS for s in ("", "s")]
    weights.check(table, [*ENCODER_NAMES, *positions])
    return config, {each.path: weights.stored(name, each) for name, each in table.items()}


def _learned(stack: Stack) -> Stack:
    assert isinstance(stack.positions, Absolute)
    positions = dataclasses.replace(stack.positions, kind="learned")
    return dataclasses.replace(stack, positions=positions)


def _has_other_positions(weights: Weights, config: TransformerConfig) -> bool:
    """Whether tables of sines in a file are others than the computed ones, but for their rounding.

    transformers takes them from the file.
    """
    positions = config.decoder.positions
    assert isinstance(positions, Absolute)
    if positions.kind != "sinusoidal":
        return False
    size = (positions.count, config.d_model)
    for name in map(POSITIONS.format, _STACKS):
        if name in weights:
            stored = weights.stored(name, Parameter("", size, size, False))
            few_bits = weights.files[name][2] in ("F16", "BF16")
            computed = sinusoids(positions, config.d_model)
            if not np.allclose(stored, computed, rtol=0, atol=0.01 if few_bits else 1e-4):
                return True
    return False


FAMILY = Family(
    model_types={
        "bart": "DistilBART", "mbart": "mBART-50", "m2m_100": "NLLB-200", "marian": "OPUS-MT",
        "pegasus": "",
    },
    public={
        "bart-SIZE*": "bart_SIZE", "distilbart-SIZE-SIZE-SIZE": "distilbart_SIZE_SIZE_SIZE",
        "mbart-SIZE*": "mbart_SIZE", "m2m100_SIZE": "m2m100_SIZE",
        "nllb-200-distilled-SIZE": "nllb_distilled_SIZE", "nllb-200-SIZE": "nllb_SIZE",
        "opus-mt-tc-big*": "marian_big", "opus-mt*": "marian_base", "marian-SIZE": "marian_SIZE",
        "pegasus-SIZE*": "pegasus_SIZE",
    },
    shape=BartConfig,
    parse_config=parse_config,
    fields=FIELDS | {
        "start_id": "decoder_start_token_id", "count": "max_position_embeddings",
        "tied": "tie_word_embeddings",
    },
    model_type_of=model_type_of,
    format_config=format_config,
    names=names,
    open_parameters=open_parameters,
)  # fmt: skip
