"""Names of GPT-2's config fields and parameters in Hugging Face's files, against our tree.

Source: ``GPT2Config`` and ``GPT2LMHeadModel`` in transformers 5. Its kernels are [in, out]
("Conv1D"), those of query, key and value side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from specdec.checkpoints.families.base import (
    Family,
    Opened,
    Weights,
    dense,
    norm,
    open_by_table,
)
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.checkpoints.hf_files import Parameter
from specdec.models.gpt import network
from specdec.models.gpt.config import Activation, GPTConfig
from specdec.models.gpt.model import GPTModel

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact", "relu": "relu",
}  # fmt: skip
# Fields of GPTConfig: their names in config.json.
NAMES = {
    "vocab_size": "vocab_size", "max_positions": "n_positions", "d_model": "n_embd",
    "num_heads": "n_head", "num_layers": "n_layer", "layer_norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "resid_pdrop", "tied_logits": "tie_word_embeddings",
}  # fmt: skip
# Fields of variants that are not supported, with GPT-2's values.
VARIANTS = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip
PREFIX = "transformer."  # Of most files' names.
EMBEDDING, HEAD = "wte.weight", "lm_head.weight"


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> GPTConfig:
    """See :class:`Family`."""
    config.check(VARIANTS)
    given = {ours: config[theirs] for ours, theirs in NAMES.items()}
    size = config.size("vocab_size")
    inner = config["n_inner"]
    return GPTConfig(
        **given,
        d_ff=4 * config.size("n_embd") if inner is None else inner,
        activation=config.choice("activation_function", ACTIVATIONS),
        **special_tokens(config, generation, size),
    )


def format_config(config: GPTConfig) -> dict[str, Any]:
    """See :class:`Family`."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **{theirs: getattr(config, ours) for ours, theirs in NAMES.items()},
        "n_inner": config.d_ff,
        "activation_function": activations[config.activation],
        **dict.fromkeys(("attn_pdrop", "embd_pdrop"), config.dropout_rate),
    }


def all_parameters(config: GPTConfig) -> dict[str, Parameter]:
    """Every parameter of a network, by Hugging Face's name without its prefix."""
    table = {}
    for name, path, shape in _named(config):
        if path == _HEAD_PATH:
            table[name] = Parameter(path, shape, shape[::-1], True)
            continue
        # Query, key and value are one axis in files.
        stacked = (*shape[:-2], math.prod(shape[-2:]))
        stored = stacked if path.endswith(("qkv/kernel", "qkv/bias")) else shape
        table[name] = Parameter(path, shape, stored, False)
    return table


_HEAD_PATH = "decoder/logits_dense/kernel"


def open_parameters(weights: Weights, config: GPTConfig) -> Opened:
    """See :class:`Family`."""
    # transformers writes all but the head with a prefix, OpenAI's own files have none.
    weights = weights.renamed(lambda name: name.removeprefix(PREFIX))
    weights.check_decoder("h.")
    table = all_parameters(dataclasses.replace(config, tied_logits=False))
    return open_by_table(weights, config, table, head=HEAD, embedding=EMBEDDING)


def _named(config: GPTConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(Hugging Face's name, our path, our shape)."""
    width, inner = config.d_model, config.d_ff
    yield EMBEDDING, "token_embedder/embedding", (config.vocab_size, width)
    yield "wpe.weight", "position_embedder/embedding", (config.max_positions, width)
    for i in range(config.num_layers):
        block, layer = f"h.{i}", f"decoder/layers_{i}"
        yield from norm(f"{block}.ln_1", f"{layer}/pre_self_attention_layer_norm", width)
        attention = f"{layer}/self_attention"
        yield from dense(f"{block}.attn.c_attn", f"{attention}/qkv", width, (3, width))
        yield from dense(f"{block}.attn.c_proj", f"{attention}/out", width, (width,))
        yield from norm(f"{block}.ln_2", f"{layer}/pre_mlp_layer_norm", width)
        yield from dense(f"{block}.mlp.c_fc", f"{layer}/mlp/wi", width, (inner,))
        yield from dense(f"{block}.mlp.c_proj", f"{layer}/mlp/wo", inner, (width,))
    yield from norm("ln_f", "decoder/decoder_norm", width)
    if not config.tied_logits:
        yield HEAD, _HEAD_PATH, (width, config.vocab_size)


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
    names=NAMES | {"d_ff": "n_inner", "start_id": "bos_token_id"},
    format_config=format_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
