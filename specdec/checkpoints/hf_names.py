"""Hugging Face's parameter names and shapes for T5, against those of T5X's tree.

Source: ``T5ForConditionalGeneration`` in transformers and ``t5x.examples.t5.network``. A draft that
starts from its target's encoding has one parameter more, which transformers does not know:
``encoder.input_projection.weight``; what that makes of the encoding is added to embedded tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from specdec.models.t5.config import T5Config

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
# Names a file may hold the embedding under, in the order transformers falls back on them.
EMBEDDING_NAMES = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD)
# Written by old versions of transformers, used by none: cross-attention has no position bias.
UNUSED_NAMES = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter in both namings.

    Attributes:
      path: where T5X's tree has it, joined by "/".
      shape: its shape in T5X's tree, kernels [in, out] and position biases [heads, buckets].
      transposed: whether Hugging Face stores the transpose.
    """

    path: str
    shape: tuple[int, ...]
    transposed: bool

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Its shape in Hugging Face's files."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def layer_parameters(config: T5Config) -> dict[str, Parameter]:
    """All parameters but the embedding and the logits' kernel, by Hugging Face's name."""
    return {
        name: Parameter(path, shape, transposed=len(shape) == 2)
        for stack in ("encoder", "decoder")
        for name, path, shape in _stack(config, stack)
    }


def embedding_parameter(config: T5Config) -> Parameter:
    """The token embedding [V, D], which both libraries store alike."""
    shape = (config.vocab_size, config.d_model)
    return Parameter("token_embedder/embedding", shape, transposed=False)


def head_parameter(config: T5Config) -> Parameter:
    """The kernel [D, V] of untied logits."""
    shape = (config.d_model, config.vocab_size)
    return Parameter("decoder/logits_dense/kernel", shape, transposed=True)


def all_parameters(config: T5Config) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name."""
    table = {EMBEDDING: embedding_parameter(config), **layer_parameters(config)}
    if not config.tied_logits:
        table[HEAD] = head_parameter(config)
    return table


def parameter_shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network, by its path in T5X's tree."""
    return {parameter.path: parameter.shape for parameter in all_parameters(config).values()}


def _stack(config: T5Config, stack: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, T5X's path, T5X's shape) for one stack."""
    if stack == "encoder":
        depth = config.num_encoder_layers
        attentions = [("SelfAttention", "attention", "pre_attention_layer_norm")]
    else:
        depth = config.num_decoder_layers
        attentions = [
            ("SelfAttention", "self_attention", "pre_self_attention_layer_norm"),
            ("EncDecAttention", "encoder_decoder_attention", "pre_cross_attention_layer_norm"),
        ]
    width, inner = config.d_model, config.num_heads * config.head_dim

    if stack == "encoder" and config.encoding_width is not None:
        projection = (config.encoding_width, width)
        yield "encoder.input_projection.weight", "encoder/input_projection/kernel", projection
    if depth:
        yield (
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{stack}/relpos_bias/rel_embedding",
            (config.num_heads, config.relative_attention_num_buckets),
        )
    for i in range(depth):
        block, layer = f"{stack}.block.{i}.layer", f"{stack}/layers_{i}"
        for j, (theirs, ours, norm) in enumerate(attentions):
            yield f"{block}.{j}.layer_norm.weight", f"{layer}/{norm}/scale", (width,)
            for letter, name in zip("qkv", ("query", "key", "value"), strict=True):
                path = f"{layer}/{ours}/{name}/kernel"
                yield f"{block}.{j}.{theirs}.{letter}.weight", path, (width, inner)
            yield f"{block}.{j}.{theirs}.o.weight", f"{layer}/{ours}/out/kernel", (inner, width)

        j = len(attentions)
        yield f"{block}.{j}.layer_norm.weight", f"{layer}/pre_mlp_layer_norm/scale", (width,)
        dense = f"{block}.{j}.DenseReluDense"
        for name in ("wi_0", "wi_1") if config.gated else ("wi",):
            yield f"{dense}.{name}.weight", f"{layer}/mlp/{name}/kernel", (width, config.d_ff)
        yield f"{dense}.wo.weight", f"{layer}/mlp/wo/kernel", (config.d_ff, width)
    yield f"{stack}.final_layer_norm.weight", f"{stack}/{stack}_norm/scale", (width,)
