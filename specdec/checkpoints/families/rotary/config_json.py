"""config.json of transformers with rotary positions, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specdec.checkpoints.fields import Fields, format_tokens, special_tokens
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.rotary.config import Activation, Rope, RotaryConfig, Stack

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu",
}  # fmt: skip
# Fields of Stack: their names in config.json.
NAMES = {
    "d_model": "hidden_size", "d_ff": "intermediate_size", "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers", "num_kv_heads": "num_key_value_heads",
    "layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip
# Fields of variants that are not supported, with the value that they must have.
VARIANTS = {"attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False}
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


@dataclasses.dataclass(frozen=True)
class Kind:
    """Facts about a model_type: transformers' class, and fields of a config."""

    architecture: str
    settings: Mapping[str, Any]  # Of Stack.
    whole: Mapping[str, Any]  # Of RotaryConfig.
    two_ropes: bool = False
    capped: bool = False  # Whether attention has a softcap.

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
_GEMMA_2: dict[str, Any] = {"settings": _settings(shifted=True, after=True), "capped": True}
_GEMMA_3: dict[str, Any] = {
    "settings": _settings(shifted=True, after=True, normed=True), "two_ropes": True
}  # fmt: skip
KINDS = {
    "llama": Kind("LlamaForCausalLM", _settings(), _PLAIN),
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
# Tokens for an image, before one and behind it in texts of T5Gemma 2.
_IMAGES = ("image_token_index", "boi_token_index", "eoi_token_index")


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> RotaryConfig:
    """See :class:`Family`."""
    kind, own, encoder, images = KINDS[model_type], config, None, ()
    if model_type.startswith("t5gemma"):
        own, encoder = config.inside("decoder"), config.inside("encoder")
        if model_type == "t5gemma2":
            places = zip(_IMAGES, (config, encoder, encoder), strict=True)
            images = tuple(-1 if fields[name] is None else fields[name] for name, fields in places)
            encoder = encoder.inside("text_config")
    given = {name: value for name, value in config.items() if value is not None}
    size, both = own.size("vocab_size"), Fields({**own, **given}, config.source)
    return RotaryConfig(
        **_stack(kind, own, None), **kind.whole,
        vocab_size=size,
        trained_positions=own["max_position_embeddings"],
        tied_logits=config["tie_word_embeddings"],
        logits_softcap=own["final_logit_softcapping"] if kind.gemma else None,
        encoder=None if encoder is None else Stack(**_stack(kind, encoder, model_type)),
        dropout_rate=config.get("dropout_rate", 0.0),
        image_ids=images if max(images, default=-1) >= 0 else (),
        **special_tokens(both, generation, size),
    )  # fmt: skip


def _stack(kind: Kind, config: Fields, encoder: str | None) -> dict[str, Any]:
    """The settings of a stack; of an encoder, if ``encoder`` names its model."""
    config.check(VARIANTS)
    found = {ours: config[theirs] for ours, theirs in NAMES.items()}
    share = config.size("hidden_size") // config.size("num_attention_heads")
    sliding = _sliding(kind, config, found["num_layers"])
    found |= {
        **kind.settings,
        # Some classes have no such field, and old files have null.
        "head_dim": share if config.get("head_dim") is None else config["head_dim"],
        "activation": config.choice(
            "hidden_activation" if kind.gemma else "hidden_act", ACTIVATIONS
        ),
        "rope": _rope(kind, config, "full_attention"),
        "sliding": sliding,
    }
    if any(sliding):
        found["window"] = _window(config.size("sliding_window"), encoder)
        found["sliding_rope"] = _rope(kind, config, "sliding_attention") if kind.two_ropes else None
    if kind.gemma:
        found["query_scalar"] = config["query_pre_attn_scalar"]
    if kind.capped:  # The others' code does nothing with the field.
        found["attention_softcap"] = config["attn_logit_softcapping"]
    return found


def _window(size: int, encoder: str | None) -> tuple[int, int]:
    """Numbers of tokens that one sees before and after itself."""
    if encoder is None:
        return size - 1, 0
    return (size, size) if encoder == "t5gemma" else ((size + 1) // 2 - 1, size // 2)


def _sliding(kind: Kind, config: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers see a window."""
    if kind.architecture == "LlamaForCausalLM":
        return ()
    given = config["layer_types"]
    if not isinstance(given, list) or any(each not in _LAYER_TYPES for each in map(str, given)):
        config.refuse("layer_types", f"a list of {' and '.join(_LAYER_TYPES)}")
    if len(given) != layers:
        config.refuse("layer_types", f"of {layers} layers")
    return tuple(_LAYER_TYPES[each] for each in given)


def _rope(kind: Kind, config: Fields, layer_type: str) -> Rope:
    fields = config.inside("rope_parameters")
    if kind.two_ropes:
        fields = fields.inside(layer_type)
    rope_type = fields.choice("rope_type", {name: name for name in ("default", "linear", "llama3")})
    fields.check({"partial_rotary_factor": 1})
    options = {"base": fields["rope_theta"]}
    if rope_type != "default":
        options["factor"] = fields["factor"]
    if rope_type == "llama3":
        options |= {
            "low": fields["low_freq_factor"], "high": fields["high_freq_factor"],
            "original": fields["original_max_position_embeddings"],
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
            same &= kind.capped or stack.attention_softcap is None
            same &= kind.gemma or stack.query_scalar in (None, stack.head_dim)
        if same and (kind.gemma or config.logits_softcap is None):
            return name
    raise CheckpointError(f"No family of transformers has these settings together: {config}.")


def format_config(config: RotaryConfig) -> dict[str, Any]:
    """See :class:`Family`. T5Gemma 2 gets a vision tower of the smallest size, without weights."""
    name = _kind_of(config)
    kind = KINDS[name]
    whole = {
        "architectures": [kind.architecture], "model_type": name,
        "tie_word_embeddings": config.tied_logits,
    }  # fmt: skip
    more = {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.trained_positions,
        "tie_word_embeddings": config.tied_logits,
    }
    if config.encoder is None:
        return {**_format_stack(kind, config, None), **more, **whole}
    tokens = format_tokens(config) | {"bos_token_id": config.start_id}
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
        **{theirs: getattr(stack, ours) for ours, theirs in NAMES.items()},
        "head_dim": stack.head_dim,
        "hidden_activation" if kind.gemma else "hidden_act": activation,
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
