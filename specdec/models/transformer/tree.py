"""The parameter tree: names of modules, and the shape of every parameter by its path.

Names are those of T5X's networks: ``token_embedder``, ``encoder`` and ``decoder`` with
``layers_<i>``, ``self_attention`` (in a T5's encoder ``attention``), ``encoder_decoder_attention``,
``mlp``, ``pre_*_layer_norm``, ``relpos_bias``, ``logits_dense``; a UMT5 has ``relpos_bias`` in each
layer, as ``t5x.examples.scalable_t5`` does. Others have what T5 has not, and BART's norms and
embeddings and GPT-2's joined kernel have names of their own, which runs were saved with. Kernels
are [in, out].
"""

from __future__ import annotations

from collections.abc import Iterator

from specdec.models.transformer.config import Absolute, Relative, Stack, TransformerConfig

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def self_attention(stack: Stack, name: str) -> str:
    """Name of a stack's self-attention."""
    t5_encoder = name == "encoder" and isinstance(stack.positions, Relative)
    return "attention" if t5_encoder else "self_attention"


def norm(config: TransformerConfig, part: str, when: str = "pre") -> str:
    """Name of a part's norm."""
    bart = config.encoder is not None and isinstance(config.decoder.positions, Absolute)
    return f"{part}_layer_norm" if bart else f"{when}_{part}_layer_norm"


def joins_qkv(config: TransformerConfig) -> bool:
    """Whether query, key and value are one kernel [in, 3, out], as GPT-2's."""
    return config.encoder is None and isinstance(config.decoder.positions, Absolute)


def position_embedder(config: TransformerConfig, name: str) -> str | None:
    """Name of a stack's table of positions; None without one."""
    positions = config.stacks[name].positions
    if not isinstance(positions, Absolute) or positions.kind != "learned":
        return None
    return "position_embedder" if config.encoder is None else f"{name}_position_embedder"


def encoder_embedder(config: TransformerConfig) -> str | None:
    """Path of an encoder's own embedding; None without one."""
    if config.encoder_vocab_size is None:
        return None
    bart = isinstance(config.decoder.positions, Absolute)
    return "encoder_token_embedder" if bart else "encoder/token_embedder"


def parameter_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network, by its path in the tree."""
    return dict(_all(config))


def _all(config: TransformerConfig) -> Shapes:
    yield "token_embedder/embedding", (config.vocab_size, config.d_model)
    if config.encoder is not None and config.encoder_vocab_size is not None:
        rows = (config.encoder_vocab_size, config.encoder.d_model)
        yield f"{encoder_embedder(config)}/embedding", rows
    for name, stack in config.stacks.items():
        if (table := position_embedder(config, name)) is not None:
            assert isinstance(stack.positions, Absolute)
            size = stack.positions.offset + stack.positions.count
            yield f"{table}/embedding", (size, stack.d_model)
        if name == "encoder" and config.features is not None:
            yield from _dense("encoder/conv1", 3 * config.features, (stack.d_model,), True)
            yield from _dense("encoder/conv2", 3 * stack.d_model, (stack.d_model,), True)
        if name == "encoder" and config.encoding_width is not None:
            yield "encoder/input_projection/kernel", (config.encoding_width, stack.d_model)
        if stack.norm.embedding:
            yield from _norm(stack, f"{name}/embedding_norm")
        positions = stack.positions
        biases = isinstance(positions, Relative) and not positions.in_every_layer
        if biases and stack.num_layers:
            yield from _biases(stack, name)
        for i in range(stack.num_layers):
            yield from _layer(config, stack, name, f"{name}/layers_{i}")
        if stack.norm.place != "after":
            yield from _norm(stack, f"{name}/{name}_norm")
    if not config.logits.tied:
        yield "decoder/logits_dense/kernel", (config.d_model, config.vocab_size)
    if config.logits.bias:
        yield "decoder/logits_dense/bias", (config.vocab_size,)


def _layer(config: TransformerConfig, stack: Stack, name: str, layer: str) -> Shapes:
    width, own = stack.d_model, self_attention(stack, name)
    parts = [own, "mlp"]
    if isinstance(stack.positions, Relative) and stack.positions.in_every_layer:
        yield from _biases(stack, layer)
    yield from _attention(config, stack, f"{layer}/{own}", width)
    if stack.query_key_norms:
        for each in ("query", "key"):
            yield f"{layer}/{own}/{each}_norm/scale", (stack.head_dim,)
    if name == "decoder" and config.encoder is not None and not config.merged_attention:
        parts.insert(1, "cross_attention")
        cross = f"{layer}/encoder_decoder_attention"
        yield from _attention(config, stack, cross, config.encoder.d_model)
    for part in parts:
        for when in ("pre", "post") if stack.norm.place == "both" else ("pre",):
            yield from _norm(stack, f"{layer}/{norm(config, part, when)}")
    biased = stack.biased("mlp")
    for each in ("wi_0", "wi_1") if stack.gated else ("wi",):
        yield from _dense(f"{layer}/mlp/{each}", width, (stack.d_ff,), biased)
    yield from _dense(f"{layer}/mlp/wo", stack.d_ff, (width,), biased)


def _attention(config: TransformerConfig, stack: Stack, path: str, read: int) -> Shapes:
    width, shared = stack.d_model, stack.kv_heads * stack.head_dim
    if joins_qkv(config):
        yield from _dense(f"{path}/qkv", width, (3, width), True)
    else:
        sizes = {"query": (width, stack.inner), "key": (read, shared), "value": (read, shared)}
        for name, (size, features) in sizes.items():
            yield from _dense(f"{path}/{name}", size, (features,), stack.biased(name))
    yield from _dense(f"{path}/out", stack.inner, (width,), stack.biased("out"))


def _dense(path: str, size: int, features: tuple[int, ...], biased: bool) -> Shapes:
    yield f"{path}/kernel", (size, *features)
    if biased:
        yield f"{path}/bias", features


def _norm(stack: Stack, path: str) -> Shapes:
    yield f"{path}/scale", (stack.d_model,)
    if stack.norm.kind == "layer":
        yield f"{path}/bias", (stack.d_model,)


def _biases(stack: Stack, owner: str) -> Shapes:
    assert isinstance(stack.positions, Relative)
    yield f"{owner}/relpos_bias/rel_embedding", (stack.num_heads, stack.positions.buckets)
