"""What Hugging Face calls GPT-2's parts: config.json's fields, and parameters against our tree.

Source: ``GPT2Config`` and ``GPT2LMHeadModel`` in transformers 5. Its kernels are [in, out]
("Conv1D"), those of query, key and value side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from specdec.arguments import MOST_LAYERS
from specdec.checkpoints.families.base import Family, Opened, Weights, open_by_table
from specdec.checkpoints.fields import Fields, TokenFields, format_ends
from specdec.checkpoints.parameters import CheckpointError
from specdec.models.gpt import network
from specdec.models.gpt.config import Activation, GPTConfig
from specdec.models.gpt.model import GPTModel

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact", "relu": "relu",
}  # fmt: skip
SIZES = {
    "vocab_size": "vocab_size",
    "max_positions": "n_positions",
    "d_model": "n_embd",
    "num_heads": "n_head",
}
# Variants that are something else than GPT-2, with what GPT-2 has.
VARIANTS = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip
PREFIX = "transformer."  # Of most files' names.
EMBEDDING, HEAD = "wte.weight", "lm_head.weight"


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> GPTConfig:
    """The network that a config.json describes.

    Args:
      model_type: GPT-2's.
      generation: generation_config.json, None where there is none.

    Raises:
      CheckpointError: a field missing or wrong, or a variant that GPTConfig cannot say.
    """
    activation: Activation = config.choice(
        "activation_function", ACTIVATIONS, ACTIVATIONS["gelu_new"]
    )
    for name, value in VARIANTS.items():
        if config.truth(name, value) != value:
            raise CheckpointError(f"{config.source}: {name} must be {value}, got {not value}.")
    sizes: dict[str, Any] = {ours: config.whole(name) for ours, name in SIZES.items()}
    tokens = TokenFields(config, generation, sizes["vocab_size"])
    # GPT-2's only special token ends, begins and pads texts.
    ends = tokens.ends(50256)
    spare = ends[0] if ends else 0
    pad, start = tokens.first("pad_token_id"), tokens.first("bos_token_id")
    has_inner = config.has("n_inner")
    try:
        return GPTConfig(
            **sizes,
            num_layers=config.whole("n_layer", 1, MOST_LAYERS),
            d_ff=config.whole("n_inner") if has_inner else 4 * sizes["d_model"],
            activation=activation,
            tied_logits=config.truth("tie_word_embeddings", True),
            layer_norm_epsilon=config.fraction("layer_norm_epsilon", 1e-5),
            dropout_rate=config.fraction("resid_pdrop", 0.1),
            pad_id=spare if pad is None else pad, start_id=spare if start is None else start,
            eos_id=ends[0] if ends else None, more_eos_ids=tuple(ends[1:]),
        )  # fmt: skip
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{config.source}: {error}") from None


def format_config(config: GPTConfig, dtype: str) -> dict[str, Any]:
    """The config.json with which transformers computes what ``config`` does."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    rates = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout_rate)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "n_layer": config.num_layers,
        "n_inner": config.d_ff,
        "activation_function": activations[config.activation],
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tied_logits,
        "torch_dtype": dtype,
        **rates,
        **format_generation_config(config),
    }


def format_generation_config(config: GPTConfig) -> dict[str, Any]:
    """The generation_config.json that goes with ``format_config``: the special tokens."""
    return {
        "bos_token_id": config.start_id,
        "eos_token_id": format_ends(config.eos_id, config.more_eos_ids),
        "pad_token_id": config.pad_id,
    }


class Parameter(NamedTuple):
    """A parameter's path in our tree, joined by "/", its shape there, and in files."""

    path: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]

    def turned(self, array: np.ndarray) -> np.ndarray:
        """A file's array as our tree has it, or one of that as files have it."""
        if self.path == _HEAD_PATH:
            return array.T
        return array.reshape(self.stored_shape if array.shape == self.shape else self.shape)


def all_parameters(config: GPTConfig) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name without its prefix."""
    table = {}
    for name, path, shape in _named(config):
        # Query, key and value are one axis in files.
        stored = (*shape[:-2], math.prod(shape[-2:])) if path.endswith(_STACKED) else shape
        stored = shape[::-1] if path == _HEAD_PATH else stored
        table[name] = Parameter(path, shape, stored)
    return table


_STACKED, _HEAD_PATH = ("qkv/kernel", "qkv/bias"), "decoder/logits_dense/kernel"


def open_parameters(weights: Weights, config: GPTConfig) -> Opened:
    """See :class:`Family`."""
    # transformers writes all but the head with a prefix, OpenAI's own files have none.
    weights = weights.renamed(lambda name: name.removeprefix(PREFIX))
    weights.check_decoder("h.")
    table = all_parameters(dataclasses.replace(config, tied_logits=False))
    # Masks that older versions of transformers saved.
    masks = [name for name in weights if name.endswith((".attn.bias", ".attn.masked_bias"))]
    return open_by_table(weights, config, table, head=HEAD, embedding=EMBEDDING, unused=masks)


def _named(config: GPTConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, our path, our shape)."""
    width, inner = config.d_model, config.d_ff
    yield EMBEDDING, "token_embedder/embedding", (config.vocab_size, width)
    yield "wpe.weight", "position_embedder/embedding", (config.max_positions, width)
    for i in range(config.num_layers):
        block, layer = f"h.{i}", f"decoder/layers_{i}"
        yield from _norm(f"{block}.ln_1", f"{layer}/pre_self_attention_layer_norm", width)
        attention = f"{layer}/self_attention"
        yield from _dense(f"{block}.attn.c_attn", f"{attention}/qkv", width, (3, width))
        yield from _dense(f"{block}.attn.c_proj", f"{attention}/out", width, (width,))
        yield from _norm(f"{block}.ln_2", f"{layer}/pre_mlp_layer_norm", width)
        yield from _dense(f"{block}.mlp.c_fc", f"{layer}/mlp/wi", width, (inner,))
        yield from _dense(f"{block}.mlp.c_proj", f"{layer}/mlp/wo", inner, (width,))
    yield from _norm("ln_f", "decoder/decoder_norm", width)
    if not config.tied_logits:
        yield HEAD, _HEAD_PATH, (width, config.vocab_size)


def _norm(name: str, path: str, width: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{path}/scale", (width,)
    yield f"{name}.bias", f"{path}/bias", (width,)


def _dense(
    name: str, path: str, size: int, features: tuple[int, ...]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{path}/kernel", (size, *features)
    yield f"{name}.bias", f"{path}/bias", features


FAMILY = Family(
    config=GPTConfig,
    network=network,
    model=GPTModel,
    model_types={
        "gpt2": "DistilGPT2",
    },
    public={"gpt2": "gpt2_small", "distilgpt2": "gpt2_distil", "gpt2-SIZE": "gpt2_SIZE"},
    tokenizer_class="GPT2TokenizerFast",
    parse_config=parse_config,
    format_config=format_config,
    format_generation_config=format_generation_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
