"""Hugging Face's config.json for T5 and mT5, against ``T5Config``.

Source: ``T5Config`` and ``MT5Config`` in transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.checkpoints.errors import CheckpointError
from specdec.models.t5.config import Activation, T5Config

DEFAULT_FEED_FORWARD = {"t5": "relu", "mt5": "gated-gelu"}
# "gated-gelu" is the tanh approximation, "gelu" on its own the exact error function (unsupported).
FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "silu": ("silu", False),
    "gelu_new": ("gelu", False),
    "gated-relu": ("relu", True),
    "gated-silu": ("silu", True),
    "gated-gelu": ("gelu", True),
    "gated-gelu_new": ("gelu", True),
}

# What T5Config has too: sizes, by both names, and what has a default.
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


def parse_config(raw: Mapping[str, Any], source: str) -> T5Config:
    """The network that a config.json describes.

    ``tied_logits`` is left False: whether the logits are tied is a matter of the weights too.

    Args:
      raw: the contents of config.json, under those of generation_config.json where there is one.
      source: the file, for messages.

    Raises:
      CheckpointError: not a T5 or mT5, a size missing, or a variant that T5Config cannot say.
    """
    model_type = raw.get("model_type")
    if model_type not in DEFAULT_FEED_FORWARD:
        raise CheckpointError(
            f"{source}: model_type is {model_type!r}; only 't5' (T5, T5 v1.1, Flan-T5) and 'mt5' "
            "checkpoints can be loaded."
        )
    feed_forward = raw.get("feed_forward_proj", DEFAULT_FEED_FORWARD[model_type])
    if feed_forward not in FEED_FORWARDS:
        raise CheckpointError(
            f"{source}: feed_forward_proj {feed_forward!r} is not supported; "
            f"it must be one of {', '.join(FEED_FORWARDS)}."
        )
    activation, gated = FEED_FORWARDS[feed_forward]
    pad_id = _token_id(raw, "pad_token_id", 0, source)
    try:
        return T5Config(
            **{ours: raw[theirs] for ours, theirs in SIZES.items()},
            **{name: raw.get(name, default) for name, default in OPTIONS.items()},
            num_decoder_layers=raw.get("num_decoder_layers") or raw["num_layers"],
            activation=activation,
            gated=gated,
            encoding_width=raw.get("encoding_width"),
            pad_id=pad_id,
            eos_id=_token_id(raw, "eos_token_id", 1, source),
            decoder_start_id=_token_id(raw, "decoder_start_token_id", pad_id, source),
        )
    except KeyError as error:
        raise CheckpointError(f"{source}: {error.args[0]} is missing; add it.") from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: {error}") from None


def scales_logits(raw: Mapping[str, Any]) -> bool:
    """Whether the decoder's output is multiplied by d_model**-0.5 before the logits.

    transformers 5 writes ``scale_decoder_outputs``; before that ``tie_word_embeddings`` decided.
    Its mT5 never scales, whatever ``tie_word_embeddings`` says.
    """
    if raw["model_type"] == "mt5":
        return False
    return raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings") is not False)


def format_config(config: T5Config, dtype: str) -> dict[str, Any]:
    """The config.json with which transformers computes what ``config`` does (4 and 5 alike).

    Args:
      config: the network. Its ``dtype``, that of activations, has no counterpart.
      dtype: how the weights are stored.
    """
    feed_forward = next(
        name for name, kind in FEED_FORWARDS.items() if kind == (config.activation, config.gated)
    )
    own = {} if config.encoding_width is None else {"encoding_width": config.encoding_width}
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        **{name: getattr(config, name) for name in OPTIONS},
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": feed_forward,
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
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.decoder_start_id,
    }


def _token_id(raw: Mapping[str, Any], name: str, default: int, source: str) -> int:
    value = raw.get(name)
    if value is None:
        return default
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int):
        raise CheckpointError(f"{source}: {name} must be one token id, got {value!r}.")
    return value
