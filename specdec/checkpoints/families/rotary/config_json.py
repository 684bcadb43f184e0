"""config.json and generation_config.json of transformers with rotary positions, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specdec.arguments import MOST_LAYERS
from specdec.checkpoints.fields import Fields, TokenFields, format_ends
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.rotary.config import Activation, Rope, RotaryConfig, Stack

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu",
}  # fmt: skip
SIZES = {
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "num_heads": "num_attention_heads",
}
# Variants that no setting says, with what must be there.
VARIANTS = {"attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a model type's network always has, and what transformers takes for what a file lacks."""

    architecture: str
    settings: Mapping[str, Any]  # Of Stack.
    whole: Mapping[str, Any]  # Of RotaryConfig.
    activation: Activation = "silu"
    bases: tuple[float, float] = (10_000.0, 10_000.0)  # Of layers that see all, and a window.
    two_ropes: bool = False
    period: int | None = (
        None  # Every so many layers one sees all; None for windows by other fields.
    )
    caps: tuple[float | None, float | None] = (None, None)  # Of scores and logits.
    tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def gemma(self) -> bool:
        """Whether it is one of Google's, which have fields of their own."""
        return self.settings["shifted_norms"]


def _settings(
    shifted: bool = False, after: bool = False, normed: bool = False, biases: bool = False
) -> dict[str, bool]:
    names = ("shifted_norms", "norms_after", "query_key_norms", "qkv_biases")
    return dict(zip(names, (shifted, after, normed, biases), strict=True))


_PLAIN = {"scaled_embedding": False, "merged_attention": False, "shared_embedding": True}
_GEMMA = _PLAIN | {"scaled_embedding": True}
_GEMMA_2: dict[str, Any] = {
    "settings": _settings(shifted=True, after=True), "activation": "gelu", "period": 2,
    "caps": (50.0, 30.0), "tokens": {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
}  # fmt: skip
_GEMMA_3 = _GEMMA_2 | {
    "settings": _settings(shifted=True, after=True, normed=True), "period": 6,
    "bases": (1_000_000.0, 10_000.0), "two_ropes": True, "caps": (None, None),
}  # fmt: skip
KINDS = {
    "llama": Kind(
        "LlamaForCausalLM", _settings(), _PLAIN, tokens={"bos_token_id": 1, "eos_token_id": 2}
    ),
    "qwen2": Kind("Qwen2ForCausalLM", _settings(biases=True), _PLAIN),
    "qwen3": Kind("Qwen3ForCausalLM", _settings(normed=True), _PLAIN),
    "gemma2": Kind("Gemma2ForCausalLM", whole=_GEMMA, **_GEMMA_2),
    "gemma3_text": Kind("Gemma3ForCausalLM", whole=_GEMMA, **_GEMMA_3),
    "t5gemma": Kind(
        "T5GemmaForConditionalGeneration", whole=_GEMMA | {"shared_embedding": False}, **_GEMMA_2
    ),
    "t5gemma2": Kind(
        "T5Gemma2ForConditionalGeneration", whole=_GEMMA | {"merged_attention": True}, **_GEMMA_3
    ),
}
# What the parts of an encoder-decoder's config.json call themselves, where they do.
_PARTS = {
    "t5gemma": ("t5_gemma_module", "t5_gemma_module"),
    "t5gemma2": ("t5gemma2_text", "t5gemma2_decoder"),
}
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


# What stands for an image, before one and behind it in texts of T5Gemma 2, with the defaults.
_IMAGES = {
    "image_token_index": 256_001, "boi_token_index": 255_999, "eoi_token_index": 256_000,
}  # fmt: skip


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> RotaryConfig:
    """The network that a config.json describes.

    Args:
      generation: generation_config.json, None where there is none.

    Raises:
      CheckpointError: a field missing or wrong, or a variant that RotaryConfig cannot say.
    """
    kind, own, encoder, images = KINDS[model_type], config, None, ()
    if model_type in _PARTS:
        own, encoder = config.inside("decoder"), config.inside("encoder")
        if model_type == "t5gemma2":
            images = _image_ids(config, encoder)
            encoder = encoder.inside("text_config")
        for part, wanted in zip((encoder, own), _PARTS[model_type], strict=True):
            if part.raw.get("model_type", wanted) != wanted:
                raise CheckpointError(
                    f"{part.source}: model_type must be {wanted!r} in a {model_type} model, got "
                    f"{part.raw['model_type']!r}: parts of several families do not fit together."
                )
    vocab_size = own.whole("vocab_size")
    given = {name: value for name, value in own.raw.items() if name in _TOKENS}
    given |= {name: config.raw[name] for name in _TOKENS if config.has(name)}
    tokens = TokenFields(Fields({**kind.tokens, **given}, config.source), generation, vocab_size)
    ends = tokens.ends(kind.tokens.get("eos_token_id"))
    pad = tokens.first("pad_token_id")
    start = tokens.first("decoder_start_token_id", "bos_token_id")
    spare = ends[0] if ends else 0
    tied = kind.gemma
    cap = _cap(own, "final_logit_softcapping", kind.caps[1]) if kind.gemma else None
    try:
        return RotaryConfig(
            **_stack(kind, own, None), **kind.whole,
            vocab_size=vocab_size,
            trained_positions=own.whole("max_position_embeddings", default=8192),
            tied_logits=config.truth("tie_word_embeddings", tied),
            logits_softcap=cap,
            encoder=None if encoder is None else Stack(**_stack(kind, encoder, model_type)),
            dropout_rate=config.fraction("dropout_rate", 0.0),
            pad_id=spare if pad is None else pad, start_id=spare if start is None else start,
            eos_id=ends[0] if ends else None, more_eos_ids=tuple(ends[1:]), image_ids=images,
        )  # fmt: skip
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{config.source}: {error}") from None


def _image_ids(config: Fields, encoder: Fields) -> tuple[int, ...]:
    """T5Gemma 2's; an encoder's token of an image is that of the whole."""
    places = (config, encoder, encoder)
    ids = tuple(
        place.whole(name, -1, default=default) if place.has(name) or name not in place.raw else -1
        for place, (name, default) in zip(places, _IMAGES.items(), strict=True)
    )
    return ids if max(ids) >= 0 else ()


def _stack(kind: Kind, config: Fields, encoder: str | None) -> dict[str, Any]:
    """The settings of a stack; of an encoder, if ``encoder`` tells whose."""
    for name, value in VARIANTS.items():
        if config.has(name) and config.truth(name, value) != value:
            raise CheckpointError(f"{config.source}: {name} must be {value}, got {not value}.")
    sizes: dict[str, Any] = {ours: config.whole(name) for ours, name in SIZES.items()}
    heads, layers = sizes["num_heads"], config.whole("num_hidden_layers", 1, MOST_LAYERS)
    size = sizes["d_model"] // heads
    field = "hidden_activation" if kind.gemma else "hidden_act"
    sliding = _sliding(kind, config, layers)
    found = {
        **sizes, **kind.settings,
        "num_layers": layers,
        "num_kv_heads": (
            config.whole("num_key_value_heads") if config.has("num_key_value_heads") else heads
        ),
        "head_dim": config.whole("head_dim") if config.has("head_dim") else size,
        "activation": config.choice(field, ACTIVATIONS, kind.activation),
        "rope": _rope(kind, config, False),
        "sliding": sliding,
        "layer_norm_epsilon": config.fraction("rms_norm_eps", 1e-6),
    }  # fmt: skip
    if any(sliding):
        found["window"] = _window(config.whole("sliding_window", default=4096), encoder)
        found["sliding_rope"] = _rope(kind, config, True) if kind.two_ropes else None
    if kind.gemma:
        found["query_scalar"] = config.positive("query_pre_attn_scalar", 256.0)
    if kind.caps[0] is not None:  # The others' code does nothing with the field.
        found["attention_softcap"] = _cap(config, "attn_logit_softcapping", kind.caps[0])
    return found


def _cap(config: Fields, name: str, default: float | None) -> float | None:
    """A softcap; null means none."""
    if name not in config.raw:
        return default
    return config.positive(name) if config.has(name) else None


def _window(size: int, encoder: str | None) -> tuple[int, int]:
    """How many tokens before and after its own one sees."""
    if encoder is None:
        return size - 1, 0
    return (size, size) if encoder == "t5gemma" else ((size + 1) // 2 - 1, size // 2)


def _sliding(kind: Kind, config: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers see a window."""
    kinds = {"full_attention": False, "sliding_attention": True}
    given = config.raw.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or any(each not in kinds for each in map(str, given)):
            raise CheckpointError(
                f"{config.source}: layer_types must be a list of {' and '.join(kinds)}."
            )
        found = [kinds[each] for each in given]
        if len(found) != layers:
            raise CheckpointError(
                f"{config.source}: layer_types has {len(found)} entries for {layers} layers."
            )
    elif kind.period is not None:
        period = config.whole("sliding_window_pattern", default=kind.period)
        found = [bool((i + 1) % period) for i in range(layers)]
    else:
        first = config.whole("max_window_layers", 0, default=28)
        slides = config.truth("use_sliding_window", False) and config.has("sliding_window")
        found = [slides and i >= first for i in range(layers)]
    return tuple(found)


def _rope(kind: Kind, config: Fields, sliding: bool) -> Rope:
    """Of layers that see all, or a window: what transformers 5 writes, or versions before it."""
    part, base = ("full_attention", "sliding_attention")[sliding], kind.bases[sliding]
    given = config.raw.get("rope_parameters")
    if isinstance(given, dict) and kind.two_ropes:
        given = given.get(part)
    elif given is None:
        name = "rope_local_base_freq" if sliding else "rope_theta"
        given = {"rope_theta": config.positive(name, base)}
        if not sliding and config.has("rope_scaling"):
            given = {**config.inside("rope_scaling").raw, **given}
    if not isinstance(given, dict):
        given = {}
    fields = Fields(given, f"{config.source}: rope_parameters")
    kinds = {name: name for name in ("default", "linear", "llama3")}
    rope_type = fields.choice("rope_type" if fields.has("rope_type") else "type", kinds, "default")
    if fields.has("partial_rotary_factor") and given["partial_rotary_factor"] != 1:
        raise CheckpointError(f"{fields.source}: partial_rotary_factor must be 1.")
    options: dict[str, Any] = {"base": fields.positive("rope_theta", base)}
    if rope_type != "default":
        options["factor"] = fields.positive("factor")
    if rope_type == "llama3":
        options |= {
            "low": fields.positive("low_freq_factor"), "high": fields.positive("high_freq_factor"),
            "original": fields.whole("original_max_position_embeddings"),
        }  # fmt: skip
    return Rope(**options)


def _kind_of(config: RotaryConfig) -> str:
    """The model_type of the family whose network this is.

    Raises:
      CheckpointError: the settings are together no family's.
    """
    stacks = config.stacks.values()
    for name, kind in KINDS.items():
        same = all(getattr(config, key) == value for key, value in kind.whole.items())
        same &= ("encoder" in config.stacks) == name.startswith("t5gemma")
        for stack in stacks:
            same &= all(getattr(stack, key) == value for key, value in kind.settings.items())
            same &= kind.two_ropes or stack.sliding_rope is None
            same &= kind.caps[0] is not None or stack.attention_softcap is None
            same &= kind.gemma or stack.query_scalar in (None, stack.head_dim)
        if same and (kind.gemma or config.logits_softcap is None):
            return name
    raise CheckpointError(f"No family of transformers has these settings together: {config}.")


def format_config(config: RotaryConfig, dtype: str) -> dict[str, Any]:
    """The config.json with which transformers computes what ``config`` does.

    T5Gemma 2 gets a vision tower of the smallest size, which has no weights.
    """
    name = _kind_of(config)
    kind = KINDS[name]
    whole = {
        "architectures": [kind.architecture], "model_type": name, "torch_dtype": dtype,
        "tie_word_embeddings": config.tied_logits, **format_generation_config(config),
    }  # fmt: skip
    more = {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.trained_positions,
        "tie_word_embeddings": config.tied_logits,
    }
    if config.encoder is None:
        return {**_format_stack(kind, config, None), **more, **whole}
    tokens = format_generation_config(config)
    both = {
        part: _format_stack(kind, stack, name if part == "encoder" else None) | more | tokens
        for part, stack in config.stacks.items()
    }  # fmt: skip
    both["decoder"]["final_logit_softcapping"] = config.logits_softcap
    if name == "t5gemma2":
        both["decoder"]["model_type"] = "t5gemma2_decoder"
        both["encoder"]["model_type"] = "t5gemma2_text"
        vision = {
            "model_type": "siglip_vision_model", "hidden_size": 2, "intermediate_size": 2,
            "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 4, "patch_size": 2,
        }  # fmt: skip
        both["encoder"] = {
            "model_type": "t5gemma2_encoder", "text_config": both["encoder"],
            "vision_config": vision, "mm_tokens_per_image": 4,
        }  # fmt: skip
        ids = dict(zip(_IMAGES, config.image_ids or (-1, -1, -1), strict=True))
        whole["image_token_index"] = ids.pop("image_token_index")
        both["encoder"] |= ids
    return {
        **whole, **both, "is_encoder_decoder": True, "dropout_rate": config.dropout_rate,
        "vocab_size": config.vocab_size,
    }  # fmt: skip


def _format_stack(kind: Kind, stack: Stack, encoder: str | None) -> dict[str, Any]:
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    activation = "gelu_pytorch_tanh" if stack.activation == "gelu" else activations["silu"]
    kinds = ("full_attention", "sliding_attention")
    slides = [stack.slides(i) for i in range(stack.num_layers)]
    found = {
        **{theirs: getattr(stack, ours) for ours, theirs in SIZES.items()},
        "num_hidden_layers": stack.num_layers,
        "num_key_value_heads": stack.num_kv_heads,
        "head_dim": stack.head_dim,
        "hidden_activation" if kind.gemma else "hidden_act": activation,
        "rms_norm_eps": stack.layer_norm_epsilon,
        "rope_parameters": _format_rope(stack.rope),
        "attention_bias": False,
    }
    if kind.two_ropes:
        ropes = (stack.rope_of(sliding) for sliding in (False, True))
        found["rope_parameters"] = dict(zip(kinds, map(_format_rope, ropes), strict=True))
    if kind.gemma:
        scalar = stack.query_scalar or stack.head_dim
        if scalar != int(scalar):
            raise CheckpointError(f"transformers' query_pre_attn_scalar is whole, not {scalar}.")
        found["query_pre_attn_scalar"] = int(scalar)
        found["attn_logit_softcapping"] = stack.attention_softcap
        if isinstance(stack, RotaryConfig):
            found["final_logit_softcapping"] = stack.logits_softcap
    if kind.architecture != "LlamaForCausalLM":
        found["layer_types"] = [kinds[each] for each in slides]
    elif any(slides):
        raise CheckpointError("A Llama of transformers has no sliding windows.")
    if any(slides) and stack.window is not None:
        before, after = stack.window
        size = before if encoder == "t5gemma" else before + after + 1
        if _window(size, encoder) != stack.window:
            raise CheckpointError(f"transformers cannot say the window {stack.window}.")
        found |= {"sliding_window": size}
        if not kind.gemma:
            found["use_sliding_window"] = True
    return found


def _format_rope(rope: Rope) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.base}
    if rope.low is not None:
        found |= {
            "rope_type": "llama3", "factor": rope.factor, "low_freq_factor": rope.low,
            "high_freq_factor": rope.high, "original_max_position_embeddings": rope.original,
        }  # fmt: skip
    elif rope.factor != 1:
        found |= {"rope_type": "linear", "factor": rope.factor}
    return found


def format_generation_config(config: RotaryConfig) -> dict[str, Any]:
    """The generation_config.json that goes with ``format_config``: the special tokens."""
    start = {"bos_token_id": config.start_id}
    if config.encoder is not None:
        start["decoder_start_token_id"] = config.start_id
    ends = format_ends(config.eos_id, config.more_eos_ids)
    return {**start, "eos_token_id": ends, "pad_token_id": config.pad_id}
