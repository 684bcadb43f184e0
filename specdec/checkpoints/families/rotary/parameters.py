"""Parameters of transformers with rotary positions: Hugging Face's names, and our tree's paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from specdec.checkpoints.families.base import Opened, Weights, open_by_table, turned_kernels
from specdec.checkpoints.hf_files import Parameter
from specdec.models.rotary.config import RotaryConfig, Stack

_EMBEDDING_PATH, _HEAD_PATH = "token_embedder/embedding", "decoder/logits_dense/kernel"


def _head_name(config: RotaryConfig) -> str:
    """Name of the logits' kernel, which files may have though it is the embedding."""
    return "lm_head.weight" if config.encoder is None else "lm_head.out_proj.weight"


def open_parameters(weights: Weights, config: RotaryConfig) -> Opened:
    """See :class:`Family`."""
    weights.check_decoder("model.layers." if config.encoder is None else "model.decoder.layers.")
    table = all_parameters(dataclasses.replace(config, tied_logits=False))
    embedding = next(name for name, each in table.items() if each.path == _EMBEDDING_PATH)
    unused = []
    if config.merged_attention:  # T5Gemma 2's parts for images, and a name of its embedding.
        images = ("vision_tower.", "multi_modal_projector.", ".eoi_embedding")
        unused = [name for name in weights if any(part in name for part in images)]
        unused.append("model.decoder.embed_tokens.weight")
    head = _head_name(config)
    return open_by_table(weights, config, table, head=head, embedding=embedding, unused=unused)


def all_parameters(config: RotaryConfig) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name."""
    return turned_kernels(_named(config))


def _named(config: RotaryConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, our path, our shape)."""
    table = (config.vocab_size, config.d_model)
    prefixes = {"decoder": "model" if config.encoder is None else "model.decoder"}
    prefixes["encoder"] = "model.encoder"
    both = config.encoder is not None and config.shared_embedding
    owner = prefixes["encoder" if both else "decoder"]
    yield f"{owner}.embed_tokens.weight", _EMBEDDING_PATH, table
    if config.encoder is not None and not config.shared_embedding:
        path, own = "encoder/token_embedder/embedding", (config.vocab_size, config.encoder.d_model)
        yield f"{prefixes['encoder']}.embed_tokens.weight", path, own
    for part, stack in config.stacks.items():
        prefix = prefixes[part]
        for i in range(stack.num_layers):
            yield from _layer(config, stack, f"{prefix}.layers.{i}", f"{part}/layers_{i}")
        yield f"{prefix}.norm.weight", f"{part}/{part}_norm/scale", (stack.d_model,)
    if not config.tied_logits:
        yield _head_name(config), _HEAD_PATH, table[::-1]


def _layer(
    config: RotaryConfig, stack: Stack, theirs: str, ours: str
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    width, size = stack.d_model, stack.head_dim
    inner, shared = stack.num_heads * size, stack.num_kv_heads * size
    crosses = stack is config and config.encoder is not None and not config.merged_attention
    for norm, path in _norms(config, stack, crosses):
        yield f"{theirs}.{norm}.weight", f"{ours}/{path}_layer_norm/scale", (width,)
    for their_part, our_part in (
        ("self_attn", "self_attention"), *([("cross_attn", "encoder_decoder_attention")] * crosses)
    ):  # fmt: skip
        read = width
        if our_part != "self_attention" and config.encoder is not None:
            read = config.encoder.d_model
        shapes = {
            "query": (width, inner), "key": (read, shared), "value": (read, shared),
            "out": (inner, width),
        }  # fmt: skip
        for letter, (name, shape) in zip("qkvo", shapes.items(), strict=True):
            proj, path = f"{theirs}.{their_part}.{letter}_proj", f"{ours}/{our_part}/{name}"
            yield f"{proj}.weight", f"{path}/kernel", shape
            if stack.qkv_biases and name != "out":
                yield f"{proj}.bias", f"{path}/bias", shape[1:]
    if stack.query_key_norms:
        for letter, name in (("q", "query"), ("k", "key")):
            path = f"{ours}/self_attention/{name}_norm/scale"
            yield f"{theirs}.self_attn.{letter}_norm.weight", path, (size,)
    for name, path in (("gate_proj", "wi_0"), ("up_proj", "wi_1"), ("down_proj", "wo")):
        shape = (stack.d_ff, width) if path == "wo" else (width, stack.d_ff)
        yield f"{theirs}.mlp.{name}.weight", f"{ours}/mlp/{path}/kernel", shape


def _norms(config: RotaryConfig, stack: Stack, crosses: bool) -> list[tuple[str, str]]:
    """Norms of a layer, by both names."""
    if not stack.norms_after:
        return [
            ("input_layernorm", "pre_self_attention"), ("post_attention_layernorm", "pre_mlp")
        ]  # fmt: skip
    before, after = "input_layernorm", "post_attention_layernorm"
    if config.encoder is not None:
        before, after = "pre_self_attn_layernorm", "post_self_attn_layernorm"
    found = [
        (before, "pre_self_attention"), (after, "post_self_attention"),
        ("pre_feedforward_layernorm", "pre_mlp"), ("post_feedforward_layernorm", "post_mlp"),
    ]  # fmt: skip
    cross = [
        (f"{when}_cross_attn_layernorm", f"{when}_cross_attention") for when in ("pre", "post")
    ]
    return found + cross * crosses
