"""GPT-2 in Hugging Face's files: ``GPT2Config`` and ``GPT2LMHeadModel`` in transformers 5.

Its kernels are [in, out] ("Conv1D"), those of query, key and value side by side.
"""

from __future__ import annotations

from typing import Any

from specdec.checkpoints.families.base import Family, Names, Opened, Weights, open_by_table
from specdec.checkpoints.fields import Fields, special_tokens
from specdec.models.gpt.config import GPTConfig
from specdec.models.transformer.config import Absolute, Activation, TransformerConfig

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact", "relu": "relu",
}  # fmt: skip
# Settings of GPTConfig: their names in config.json.
FIELDS = {
    "vocab_size": "vocab_size", "max_positions": "n_positions", "d_model": "n_embd",
    "num_heads": "n_head", "num_layers": "n_layer", "layer_norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "resid_pdrop", "tied_logits": "tie_word_embeddings",
}  # fmt: skip
# Fields of variants that are not supported, with GPT-2's values.
VARIANTS = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip
NAMES = Names(
    modules={
        "token_embedder": "wte", "position_embedder": "wpe", "decoder/decoder_norm": "ln_f",
        "decoder/logits_dense": "lm_head",
    },
    layers={"decoder": "h.{}"},
    parts={
        "pre_self_attention_layer_norm": "ln_1", "pre_mlp_layer_norm": "ln_2",
        "self_attention/qkv": "attn.c_attn", "self_attention/out": "attn.c_proj",
        "mlp/wi": "mlp.c_fc", "mlp/wo": "mlp.c_proj",
    },
    turned=False,
)  # fmt: skip


def parse_config(model_type: str, config: Fields, generation: Fields | None) -> TransformerConfig:
    """See :class:`Family`."""
    config.check(VARIANTS)
    inner, size = config["n_inner"], config.size("vocab_size")
    return GPTConfig(
        **{ours: config[theirs] for ours, theirs in FIELDS.items()},
        d_ff=4 * config.size("n_embd") if inner is None else inner,
        activation=config.choice("activation_function", ACTIVATIONS),
        **special_tokens(config, generation, size),
    )


def model_type_of(config: TransformerConfig) -> str | None:
    """See :class:`Family`."""
    stack, positions = config.decoder, config.decoder.positions
    if config.encoder is not None or not isinstance(positions, Absolute):
        return None
    own = positions == Absolute(positions.count) and stack.norm.place == "before"
    other = stack.norm.embedding or config.scaled_embedding or config.logits.bias
    known = own and not other and stack.activation in ACTIVATIONS.values()
    return "gpt2" if known else None


def format_config(config: TransformerConfig, model_type: str) -> dict[str, Any]:
    """See :class:`Family`."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    stack = config.decoder
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": model_type,
        "vocab_size": config.vocab_size, "n_positions": config.max_positions,
        "n_embd": stack.d_model, "n_head": stack.num_heads, "n_layer": stack.num_layers,
        "n_inner": stack.d_ff, "layer_norm_epsilon": stack.norm.epsilon,
        "tie_word_embeddings": config.tied_logits,
        "activation_function": activations[stack.activation],
        **dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), config.dropout_rate),
    }  # fmt: skip


def open_parameters(weights: Weights, config: TransformerConfig) -> Opened:
    """See :class:`Family`."""
    # transformers writes all but the head with a prefix, OpenAI's own files have none.
    weights = weights.renamed(lambda name: name.removeprefix("transformer."))
    weights.check_decoder("h.")
    return open_by_table(weights, config, NAMES)


FAMILY = Family(
    model_types={"gpt2": "DistilGPT2"},
    public={"gpt2": "gpt2_small", "distilgpt2": "gpt2_distil", "gpt2-SIZE": "gpt2_SIZE"},
    shape=GPTConfig,
    parse_config=parse_config,
    fields=FIELDS | {
        "d_ff": "n_inner", "start_id": "bos_token_id", "tied": "tie_word_embeddings",
        "count": "n_positions", "epsilon": "layer_norm_epsilon",
    },
    model_type_of=model_type_of,
    format_config=format_config,
    names=lambda config: NAMES,
    open_parameters=open_parameters,
    tokenizer_class="GPT2TokenizerFast",
)  # fmt: skip
