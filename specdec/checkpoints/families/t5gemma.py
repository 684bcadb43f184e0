"""T5Gemma and T5Gemma 2 in Hugging Face's files.

Source: ``T5GemmaForConditionalGeneration`` and ``T5Gemma2ForConditionalGeneration`` in transformers
5. Of the latter the text's part is read, the vision tower is not.
"""

from __future__ import annotations

from typing import Any

from specdec.checkpoints.families import _rotary
from specdec.checkpoints.families._rotary import Kind, window_before
from specdec.checkpoints.families.base import (
    Family,
    Names,
    Opened,
    Weights,
    open_by_table,
    projections,
)
from specdec.checkpoints.fields import Fields, format_tokens, special_tokens
from specdec.models.rotary.config import RotaryConfig
from specdec.models.transformer.config import Logits, TransformerConfig

_NAME = "T5GemmaForConditionalGeneration"
KINDS = {
    "t5gemma": Kind(_NAME, gemma=True, capped=True),
    "t5gemma2": Kind(
        _NAME.replace("Gemma", "Gemma2"), gemma=True, query_key_norms=True, two_ropes=True
    ),
}
# Tokens for an image, before one and behind it in texts of T5Gemma 2.
_IMAGES = ("image_token_index", "boi_token_index", "eoi_token_index")
_VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 2, "intermediate_size": 2,
    "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 4, "patch_size": 2,
}  # fmt: skip


def _encoder_window(model_type: str) -> _rotary.Window:
    """The window of an encoder's layers, to both sides."""
    if model_type == "t5gemma":
        return lambda size: (size, size)
    return lambda size: ((size + 1) // 2 - 1, size // 2)


def names(config: TransformerConfig) -> Names:
    """See :class:`Family`."""
    shared, parts = config.encoder_vocab_size is None, dict(_rotary.PARTS)
    parts |= projections("encoder_decoder_attention", "cross_attn.{}_proj")
    theirs = {"self_attention": "self_attn", "cross_attention": "cross_attn", "mlp": "feedforward"}
    for ours, their in theirs.items():
        for when in ("pre", "post"):
            parts[f"{when}_{ours}_layer_norm"] = f"{when}_{their}_layernorm"
    return Names(
        modules={
            "token_embedder": f"model.{'encoder' if shared else 'decoder'}.embed_tokens",
            "encoder/token_embedder": "model.encoder.embed_tokens",
            "encoder/encoder_norm": "model.encoder.norm",
            "decoder/decoder_norm": "model.decoder.norm",
            "decoder/logits_dense": "lm_head.out_proj",
        },
        layers={stack: f"model.{stack}.layers.{{}}" for stack in ("encoder", "decoder")},
        parts=parts,
    )


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
    """See :class:`Family`."""
    kind, decoder, encoder = KINDS[model_type], config.inside("decoder"), config.inside("encoder")
    merged, images = model_type == "t5gemma2", ()
    if merged:
        places = zip(_IMAGES, (config, encoder, encoder), strict=True)
        images = tuple(-1 if fields[name] is None else fields[name] for name, fields in places)
        encoder = encoder.inside("text_config")
    given = {name: value for name, value in config.items() if value is not None}
    size, both = decoder.size("vocab_size"), Fields({**decoder, **given}, config.source)
    return TransformerConfig(
        vocab_size=size,
        decoder=kind.parse(decoder),
        encoder=kind.parse(encoder, _encoder_window(model_type)),
        logits=Logits(config["tie_word_embeddings"], softcap=decoder["final_logit_softcapping"]),
        scaled_embedding=True,
        encoder_vocab_size=None if merged else size,
        merged_attention=merged,
        trained_positions=decoder["max_position_embeddings"],
        dropout_rate=config.get("dropout_rate", 0.0),
        image_ids=images if max(images, default=-1) >= 0 else (),
        **special_tokens(both, generation, size),
    )


def model_type_of(config: TransformerConfig) -> str | None:
    """See :class:`Family`."""
    merged = config.merged_attention
    name, own = ("t5gemma2", None) if merged else ("t5gemma", config.vocab_size)
    known = config.scaled_embedding and config.encoder_vocab_size == own
    fits = all(map(KINDS[name].fits, config.stacks.values()))
    return name if config.encoder is not None and known and fits else None


def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
    """See :class:`Family`. T5Gemma 2 gets a vision tower of the smallest size, without weights."""
    kind, encoder = KINDS[model_type], config.encoder
    assert encoder is not None
    tied = {"tie_word_embeddings": config.tied_logits}
    more = {
        "vocab_size": config.vocab_size, "max_position_embeddings": config.trained_positions,
        **tied, **format_tokens(config), "bos_token_id": config.start_id,
    }  # fmt: skip
    size = encoder.window[0] if encoder.window and model_type == "t5gemma" else None
    parts = {
        "encoder": kind.format(encoder, _encoder_window(model_type), size) | more,
        "decoder": kind.format(config.decoder, window_before)
        | {**more, "final_logit_softcapping": config.logits.softcap},
    }
    whole: dict[str, Any] = {
        "architectures": [kind.architecture], "model_type": model_type, **tied,
        "is_encoder_decoder": True, "dropout_rate": config.dropout_rate,
        "vocab_size": config.vocab_size,
    }  # fmt: skip
    if model_type == "t5gemma2":
        ids = dict(zip(_IMAGES, config.image_ids or (-1, -1, -1), strict=True))
        whole["image_token_index"] = ids.pop("image_token_index")
        parts["decoder"]["model_type"] = "t5gemma2_decoder"
        parts["encoder"]["model_type"] = "t5gemma2_text"
        parts["encoder"] = {
            "model_type": "t5gemma2_encoder", "text_config": parts["encoder"],
            "vision_config": _VISION, "mm_tokens_per_image": 4, **ids,
        }  # fmt: skip
    return whole | parts


def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
    """See :class:`Family`."""
    weights.check_decoder("model.decoder.layers.")
    unused = []
    if config.merged_attention:  # T5Gemma 2's parts for images, and a name of its embedding.
        images = ("vision_tower.", "multi_modal_projector.", ".eoi_embedding")
        unused = [name for name in weights if any(part in name for part in images)]
        unused.append("model.decoder.embed_tokens.weight")
    return open_by_table(weights, config, names(config), unused)


FAMILY = Family(
    model_types={"t5gemma": "", "t5gemma2": "without images"},
    public={
        "t5gemma-2-SIZE-SIZE*": "t5gemma2_SIZE_SIZE", "t5gemma-SIZE-SIZE*": "t5gemma_SIZE_SIZE",
    },
    shape=RotaryConfig,
    parse_config=parse_config,
    fields=_rotary.MESSAGES,
    model_type_of=model_type_of,
    format_config=format_config,
    names=names,
    open_parameters=open_parameters,
)  # fmt: skip
