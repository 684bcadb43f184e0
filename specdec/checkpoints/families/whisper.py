"""Whisper in Hugging Face's files: a pre-norm BART whose encoder reads sound.

Source: Radford et al. 2022, section 2.2, and the configuration and model of Whisper in transformers
5. Both tables of positions are the file's, as there: an encoder's sines are rounded in it.
"""

from __future__ import annotations

from typing import Any

from specdec.checkpoints.families.bart import ACTIVATIONS, LAYERS, MODULES, PARTS, SAME
from specdec.checkpoints.families.base import Family, Names, Opened, Weights, open_by_table
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.models.transformer.config import Absolute, TransformerConfig
from specdec.models.whisper.config import WhisperConfig

# Settings of WhisperConfig: their names in config.json.
FIELDS = {
    "vocab_size": "vocab_size", "features": "num_mel_bins", "d_model": "d_model",
    "encoder_positions": "max_source_positions", "decoder_positions": "max_target_positions",
    "num_heads": "encoder_attention_heads", "d_ff": "encoder_ffn_dim",
    "num_encoder_layers": "encoder_layers", "num_decoder_layers": "decoder_layers",
    "dropout_rate": "dropout",
}  # fmt: skip
HEAD = "proj_out.weight"


def names(config: TransformerConfig) -> Names:
    """See :class:`Family`."""
    width, mels = config.d_model, config.features or 0
    modules = {
        "token_embedder": "model.decoder.embed_tokens", "decoder/logits_dense": "proj_out",
        "encoder/conv1": "model.encoder.conv1", "encoder/conv2": "model.encoder.conv2",
    }  # fmt: skip
    stored = {
        "encoder/conv1/kernel": (width, mels, 3), "encoder/conv2/kernel": (width, width, 3)
    }  # fmt: skip
    return Names(modules=MODULES | modules, layers=LAYERS, parts=PARTS, stored=stored)


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
    """See :class:`Family`."""
    config.check({"scale_embedding": False})
    for own, other in SAME.items():
        if config[own] != config[other]:
            config.refuse(own, f"{other}'s {config[other]}")
    given = {ours: config[theirs] for ours, theirs in FIELDS.items()}
    for name in ("encoder_layers", "decoder_layers", "encoder_attention_heads", "d_model"):
        config.size(name)
    tokens = special_tokens(config, generation, config.size("vocab_size"), encodes=True)
    return WhisperConfig(
        **given, activation=config.choice("activation_function", ACTIVATIONS),
        decoder_start_id=tokens.pop("start_id"), **tokens,
    )  # fmt: skip


def model_type_of(config: TransformerConfig) -> str | None:
    """See :class:`Family`."""
    stack, encoder, shape = config.decoder, config.encoder, config.input_shape
    if encoder is None or shape is None or config.max_positions is None:
        return None
    own = WhisperConfig(
        config.vocab_size, shape[1], stack.d_model, encoder.num_layers, stack.num_layers,
        stack.num_heads, stack.d_ff, shape[0] // 2, config.max_positions, stack.activation,
        config.tied_logits, pad_id=0, eos_id=None, decoder_start_id=0,
    )  # fmt: skip
    same = (own.encoder, own.decoder, own.logits) == (encoder, stack, config.logits)
    return "whisper" if same and not config.scaled_embedding else None


def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
    """See :class:`Family`."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    stack, shape, positions = config.decoder, config.input_shape, config.decoder.positions
    assert shape is not None
    assert isinstance(positions, Absolute)
    return {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": model_type,
        "is_encoder_decoder": True, "vocab_size": config.vocab_size, "num_mel_bins": shape[1],
        "max_source_positions": shape[0] // 2, "max_target_positions": positions.count,
        "d_model": stack.d_model,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), stack.num_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), stack.d_ff),
        "encoder_layers": config.num_encoder_layers, "decoder_layers": stack.num_layers,
        "scale_embedding": False, "tie_word_embeddings": config.tied_logits,
        "dropout": config.dropout_rate, "activation_function": activations[stack.activation],
        **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
        **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    }  # fmt: skip


def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
    """See :class:`Family`."""
    weights.check_decoder("model.decoder.layers.")
    return open_by_table(weights, config, names(config))


FAMILY = Family(
    model_types={"whisper": ""},
    public={
        "whisper-SIZE": "whisper_SIZE",
        "whisper-large-SIZE": "whisper_large_SIZE",
        "whisper-large-v3-turbo": "whisper_large_v3_turbo",
        "distil-SIZE": "distil_whisper_SIZE",
        "distil-large-SIZE": "distil_whisper_large_SIZE",
    },
    shape=WhisperConfig,
    parse_config=parse_config,
    fields=FIELDS | {"start_id": "decoder_start_token_id", "tied": "tie_word_embeddings"},
    model_type_of=model_type_of,
    format_config=format_config,
    names=names,
    open_parameters=open_parameters,
    tokenizer_class="WhisperTokenizer",
)
