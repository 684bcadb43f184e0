"""T5, mT5 and UMT5 in Hugging Face's files.

Source: ``T5Config``, ``MT5Config``, ``UMT5Config`` and their ``ForConditionalGeneration`` in
transformers 5, and ``t5x.examples.t5.network``. A draft that starts from its target's encoding has
what transformers does not know: the field ``encoding_width`` and the parameter
``encoder.input_projection.weight``, whose product with the encoding is added to embedded tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from specdec.checkpoints.families.base import (
    EMBEDDING_PATH,
    HEAD_PATH,
    Family,
    Names,
    Opened,
    Weights,
    named_parameters,
    projections,
    same,
    untied,
)
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.t5.config import T5Config
from specdec.models.transformer.config import Activation, Logits, Relative, TransformerConfig

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
# Names in config.json of what T5Config calls otherwise, and of what it calls so, too.
OTHERS = {"head_dim": "d_kv", "num_encoder_layers": "num_layers"}
BOTH = (
    "vocab_size", "d_model", "num_heads", "d_ff", "num_decoder_layers",
    "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon",
    "dropout_rate",
)  # fmt: skip

EMBEDDING, HEAD = "shared.weight", "lm_head.weight"
# Names a file may hold the embedding under, in the order transformers falls back on them.
EMBEDDING_NAMES = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD)
BIASES = "layer.0.SelfAttention.relative_attention_bias"


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
    """See :class:`Family`.

    Logits are tied where they are scaled by d_model**-0.5. Those are tied to the embedding in every
    public checkpoint, but whether they are is a matter of the weights. mT5's are never scaled.
    """
    given = {name: config[name] for name in BOTH}
    given |= {ours: config[theirs] for ours, theirs in OTHERS.items()}
    size, _ = config.size("vocab_size"), config.size("num_decoder_layers")
    activation, gated = config.choice("feed_forward_proj", FEED_FORWARDS)
    if "dense_act_fn" in config:  # transformers has it from the former, unless the file has it.
        activation = config.choice("dense_act_fn", ACTIVATIONS)
    tokens = special_tokens(config, generation, size, encodes=True)
    return T5Config(
        **given,
        activation=activation,
        gated=config.get("is_gated_act", gated),
        tied_logits=model_type != "mt5" and config["scale_decoder_outputs"],
        relative_bias_in_every_layer=model_type == "umt5",
        encoding_width=config.get("encoding_width"),
        decoder_start_id=tokens.pop("start_id"),
        **tokens,
    )


def model_type_of(config: TransformerConfig) -> str | None:
    """See :class:`Family`."""
    encoder, positions = config.encoder, config.decoder.positions
    if encoder is None or not isinstance(positions, Relative):
        return None
    alike = dataclasses.replace(config.decoder, num_layers=encoder.num_layers) == encoder
    known = (encoder.activation, encoder.gated) in FEED_FORWARDS.values()
    if not (alike and known) or config.logits.tied != config.logits.scaled:
        return None
    return "umt5" if positions.in_every_layer else "t5"


def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
    """See :class:`Family`; transformers 4 and 5 read it alike."""
    own = {} if config.encoding_width is None else {"encoding_width": config.encoding_width}
    stack, kind = config.decoder, (config.decoder.activation, config.decoder.gated)
    positions = stack.positions
    assert isinstance(positions, Relative)
    return {
        "architectures": [f"{model_type.upper()}ForConditionalGeneration"],
        "model_type": model_type,
        "is_encoder_decoder": True,
        **{name: getattr(stack, name) for name in ("d_model", "num_heads", "d_ff")},
        "vocab_size": config.vocab_size, "d_kv": stack.head_dim,
        "num_layers": config.num_encoder_layers, "num_decoder_layers": stack.num_layers,
        "relative_attention_num_buckets": positions.buckets,
        "relative_attention_max_distance": positions.distance,
        "layer_norm_epsilon": stack.norm.epsilon, "dropout_rate": config.dropout_rate,
        "feed_forward_proj": next(name for name in FEED_FORWARDS if FEED_FORWARDS[name] == kind),
        "tie_word_embeddings": config.tied_logits,
        "scale_decoder_outputs": config.tied_logits,
        **own,
    }  # fmt: skip


def _parts(stack: str, *parts: tuple[str, str, str]) -> dict[str, str]:
    """Names of a stack's parts: each a number of ``layer``, with a norm."""
    found = {f"{stack}/relpos_bias": BIASES}
    for i, (ours, theirs, norm) in enumerate(parts):
        found[f"{stack}/pre_{norm}_layer_norm"] = f"layer.{i}.layer_norm"
        before = f"layer.{i}.{theirs}."
        kernels = (
            same(*(f"mlp/{name}" for name in ("wi", "wi_0", "wi_1", "wo")), before=before)
            if ours == "mlp" else projections(ours, f"{before}{{}}")
        )  # fmt: skip
        found |= {f"{stack}/{name}": theirs for name, theirs in kernels.items()}
    return found


_MLP = ("mlp", "DenseReluDense", "mlp")
NAMES = Names(
    modules={
        "token_embedder": "shared", "decoder/logits_dense": "lm_head",
        "encoder/input_projection": "encoder.input_projection",
        **{f"{s}/{s}_norm": f"{s}.final_layer_norm" for s in ("encoder", "decoder")},
        **{f"{s}/relpos_bias": f"{s}.block.0.{BIASES}" for s in ("encoder", "decoder")},
    },
    layers={stack: f"{stack}.block.{{}}" for stack in ("encoder", "decoder")},
    parts=_parts("encoder", ("attention", "SelfAttention", "attention"), _MLP)
    | _parts(
        "decoder", ("self_attention", "SelfAttention", "self_attention"),
        ("encoder_decoder_attention", "EncDecAttention", "cross_attention"), _MLP,
    ),
)  # fmt: skip


def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
    """See :class:`Family`. Logits follow transformers 5.24.

    They come from ``lm_head.weight`` where the file has one and from the embedding otherwise,
    scaled by d_model**-0.5 as config.json asks. A head that is both separate and scaled has the
    factor multiplied into its kernel.

    Raises:
      CheckpointError: encoder and decoder have different embeddings.
    """
    scaled = config.logits.scaled
    layers = named_parameters(untied(config), NAMES)
    shared, head = layers.pop(EMBEDDING), layers.pop(HEAD)
    weights.check_decoder("decoder.block.")
    found = [name for name in EMBEDDING_NAMES if name in weights]
    embedding_name = found[0] if found else EMBEDDING
    weights.check([embedding_name, *layers], EMBEDDING_NAMES)
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
    tied = scaled and is_embedding(head_name)
    config = dataclasses.replace(config, logits=Logits(tied, tied))
    params = {EMBEDDING_PATH: embedding}
    if not tied:
        factor = config.d_model**-0.5 if scaled else 1.0
        params[HEAD_PATH] = weights.stored(head_name, head, factor)
    return config, params | {each.path: weights.stored(n, each) for n, each in layers.items()}


FAMILY = Family(
    model_types={
        "t5": "Flan-T5, UL2, MADLAD-400, ByT5, CodeT5+", "mt5": "Aya-101", "umt5": "",
    },
    public={
        "t5-v1_1-SIZE": "t5_1_1_SIZE", "flan-t5-SIZE": "t5_1_1_SIZE", "t5-SIZE": "t5_1_0_SIZE",
    },
    shape=T5Config,
    parse_config=parse_config,
    fields={
        "head_dim": "d_kv", "gated": "is_gated_act", "start_id": "decoder_start_token_id",
        "tied": "scale_decoder_outputs", "buckets": "relative_attention_num_buckets",
        "distance": "relative_attention_max_distance", "epsilon": "layer_norm_epsilon",
    },
    model_type_of=model_type_of,
    format_config=format_config,
    names=lambda config: NAMES,
    open_parameters=open_parameters,
    tokenizer_class="T5Tokenizer",
)  # fmt: skip
