"""Fields of a stack and names, as the files of all families with rotary positions have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from specdec.checkpoints.families.base import (
    Family,
    Names,
    Opened,
    Weights,
    open_by_table,
    projections,
)
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.rotary.config import RotaryConfig
from specdec.models.transformer.config import (
    Activation,
    Logits,
    Norm,
    Rope,
    Rotary,
    Stack,
    TransformerConfig,
)

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu",
}  # fmt: skip
# Settings of Stack: their names in config.json.
FIELDS = {
    "d_model": "hidden_size", "d_ff": "intermediate_size", "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers", "num_kv_heads": "num_key_value_heads",
}  # fmt: skip
# And of other settings, for messages.
MESSAGES = FIELDS | {
    "epsilon": "rms_norm_eps", "tied": "tie_word_embeddings",
    "trained_positions": "max_position_embeddings", "query_scalar": "query_pre_attn_scalar",
    "attention_softcap": "attn_logit_softcapping", "softcap": "final_logit_softcapping",
    "window": "sliding_window", "base": "rope_theta", "low": "low_freq_factor",
    "high": "high_freq_factor", "original": "original_max_position_embeddings",
}  # fmt: skip
# Fields of variants that are not supported, with the value that they must have.
VARIANTS = {"attention_bias": False, "mlp_bias": False, "use_bidirectional_attention": False}
LAYER_TYPES = ("full_attention", "sliding_attention")
# Names of a layer's norms where they stand before each part.
PRE_NORMS = {
    "pre_self_attention_layer_norm": "input_layernorm",
    "pre_mlp_layer_norm": "post_attention_layernorm",
}  # fmt: skip
PARTS = {
    **projections("self_attention", "self_attn.{}_proj"),
    **{f"self_attention/{each}_norm": f"self_attn.{each[0]}_norm" for each in ("query", "key")},
    "mlp/wi_0": "mlp.gate_proj", "mlp/wi_1": "mlp.up_proj", "mlp/wo": "mlp.down_proj",
}  # fmt: skip
Window = Callable[[int], tuple[int, int]]  # What layers with a window of a size see.


def window_before(size: int) -> tuple[int, int]:
    """A decoder's: a token itself is one of so many."""
    return size - 1, 0


@dataclasses.dataclass(frozen=True)
class Kind:
    """Facts about a model_type.

    Attributes:
      architecture: transformers' class.
      gemma: whether it is one of Google's, which have fields and norms of their own.
      capped: whether attention has a softcap.
      two_ropes: whether layers with a window have angles of their own.
      layers: whether config.json says of each layer whether it sees a window: "each"; or of all at
        once: "all"; or none does.
    """

    architecture: str
    gemma: bool = False
    query_key_norms: bool = False
    biases: Literal["none", "qkv"] = "none"
    capped: bool = False
    two_ropes: bool = False
    layers: Literal["each", "all", "none"] = "each"

    @property
    def _norm(self) -> tuple[Literal["rms", "shifted_rms"], Literal["before", "both"]]:
        return ("shifted_rms", "both") if self.gemma else ("rms", "before")

    @property
    def _activation(self) -> str:
        return "hidden_activation" if self.gemma else "hidden_act"

    def parse(self, config: Fields, window: Window = window_before) -> Stack:
        """The layers that fields describe."""
        config.check(VARIANTS)
        found = {ours: config[theirs] for ours, theirs in FIELDS.items()}
        share = config.size("hidden_size") // config.size("num_attention_heads")
        sliding = self._sliding(config, config.size("num_hidden_layers"))
        kind, place = self._norm
        own = self.two_ropes and any(sliding)
        return Stack(
            **found,
            # Some classes have no such field, and old files have null.
            head_dim=share if config.get("head_dim") is None else config["head_dim"],
            positions=Rotary(
                self._rope(config, LAYER_TYPES[0]),
                self._rope(config, LAYER_TYPES[1]) if own else None,
            ),
            norm=Norm(kind, config["rms_norm_eps"], place),
            activation=config.choice(self._activation, ACTIVATIONS),
            biases=self.biases,
            query_key_norms=self.query_key_norms,
            query_scalar=config["query_pre_attn_scalar"] if self.gemma else None,
            # The others' code does nothing with the field.
            attention_softcap=config["attn_logit_softcapping"] if self.capped else None,
            sliding=sliding,
            window=window(config.size("sliding_window")) if any(sliding) else None,
        )

    def _sliding(self, config: Fields, layers: int) -> tuple[bool, ...]:
        """Which layers see a window."""
        if self.layers != "each":
            every = self.layers == "all" and config["sliding_window"] is not None
            return (True,) if every else ()
        given = config["layer_types"]
        if not isinstance(given, list) or any(each not in LAYER_TYPES for each in map(str, given)):
            config.refuse("layer_types", f"a list of {' and '.join(LAYER_TYPES)}")
        if len(given) != layers:
            config.refuse("layer_types", f"of {layers} layers")
        return tuple(each == LAYER_TYPES[1] for each in given)

    def _rope(self, config: Fields, layer_type: str) -> Rope:
        fields = config.inside("rope_parameters")
        if self.two_ropes:
            fields = fields.inside(layer_type)
        known = {name: name for name in ("default", "linear", "llama3")}
        rope_type = fields.choice("rope_type", known)
        fields.check({"partial_rotary_factor": 1})
        factor = 1.0 if rope_type == "default" else fields["factor"]
        if rope_type != "llama3":
            return Rope(fields["rope_theta"], factor)
        return Rope(
            fields["rope_theta"], factor, fields["low_freq_factor"], fields["high_freq_factor"],
            fields["original_max_position_embeddings"],
        )  # fmt: skip

    def fits(self, stack: Stack) -> bool:
        """Whether such fields can describe the layers, but for numbers."""
        if not isinstance(stack.positions, Rotary):
            return False
        own = (stack.norm.kind, stack.norm.place, stack.query_key_norms, stack.biases)
        whole = {"each": True, "all": stack.sliding in ((), (True,)), "none": not stack.sliding}
        return (
            own == (*self._norm, self.query_key_norms, self.biases)
            and whole[self.layers]
            and (self.two_ropes or stack.positions.sliding_rope is None)
            and (self.capped or stack.attention_softcap is None)
            and (self.gemma or stack.query_scalar in (None, stack.head_dim))
            and stack.activation in ACTIVATIONS.values()
        )

    def format(
        self, stack: Stack, windows: Window = window_before, size: int | None = None
    ) -> dict[str, Any]:
        """The fields of layers.

        Args:
          size: of a window, where :func:`window_before` does not tell it.
        """
        slides = [stack.slides(i) for i in range(stack.num_layers)]
        activation = "gelu_pytorch_tanh" if stack.activation == "gelu" else stack.activation
        ropes = [_format_rope(stack.rope_of(sliding)) for sliding in (False, True)]
        found = {
            **{theirs: getattr(stack, ours) for ours, theirs in FIELDS.items()},
            "rms_norm_eps": stack.norm.epsilon, "head_dim": stack.head_dim,
            self._activation: activation, "attention_bias": False,
            "rope_parameters": dict(zip(LAYER_TYPES, ropes, strict=True))
            if self.two_ropes else ropes[0],
        }  # fmt: skip
        if self.gemma:
            scalar = stack.query_scalar or stack.head_dim
            if scalar != int(scalar):
                raise CheckpointError(f"query_pre_attn_scalar is whole in files, not {scalar}.")
            found["query_pre_attn_scalar"] = int(scalar)
            found["attn_logit_softcapping"] = stack.attention_softcap
        if self.layers == "each":
            found["layer_types"] = [LAYER_TYPES[each] for each in slides]
        elif self.layers == "all":
            found["sliding_window"] = None
        if any(slides) and stack.window is not None:
            size = sum(stack.window) + 1 if size is None else size
            if windows(size) != stack.window:
                raise CheckpointError(f"transformers cannot say the window {stack.window}.")
            found["sliding_window"] = size
            if self.layers == "each" and not self.gemma:
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


def decoders(
    kinds: Mapping[str, Kind], *, model_types: Mapping[str, str], public: Mapping[str, str],
    norms: Mapping[str, str] = PRE_NORMS,
) -> Family:  # fmt: skip
    """A family of decoders alone.

    Args:
      kinds: by model_type; of several that fit a network the first.
      model_types, public: see :class:`Family`.
      norms: names of a layer's norms.
    """
    names = Names(
        modules={
            "token_embedder": "model.embed_tokens", "decoder/decoder_norm": "model.norm",
            "decoder/logits_dense": "lm_head",
        },
        layers={"decoder": "model.layers.{}"},
        parts={**PARTS, **norms},
    )  # fmt: skip

    def parse(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
        kind, size = kinds[model_type], config.size("vocab_size")
        softcap = config["final_logit_softcapping"] if kind.gemma else None
        return TransformerConfig(
            vocab_size=size, decoder=kind.parse(config),
            logits=Logits(config["tie_word_embeddings"], softcap=softcap),
            trained_positions=config["max_position_embeddings"],
            scaled_embedding=kind.gemma, **special_tokens(config, generation, size),
        )  # fmt: skip

    def model_type_of(config: TransformerConfig) -> str | None:
        if config.encoder is not None or config.logits.bias or config.logits.scaled:
            return None
        for name, kind in kinds.items():
            known = kind.gemma == config.scaled_embedding
            capped = config.logits.softcap is not None
            if known and kind.fits(config.decoder) and (kind.gemma or not capped):
                return name
        return None

    def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
        kind = kinds[model_type]
        softcap = {"final_logit_softcapping": config.logits.softcap} if kind.gemma else {}
        return {
            **kind.format(config.decoder), **softcap, "vocab_size": config.vocab_size,
            "max_position_embeddings": config.trained_positions, "model_type": model_type,
            "tie_word_embeddings": config.tied_logits, "architectures": [kind.architecture],
        }  # fmt: skip

    def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
        weights.check_decoder("model.layers.")
        return open_by_table(weights, config, names)

    return Family(
        model_types=model_types, public=public, shape=RotaryConfig, parse_config=parse,
        fields=MESSAGES, model_type_of=model_type_of, format_config=format_config,
        names=lambda config: names, open_parameters=open_parameters,
    )  # fmt: skip
