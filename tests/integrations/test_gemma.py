"""T5Gemma beside its authors' own Linen code, where that is installed.

It is ``gemma.research.t5gemma`` of google-deepmind/gemma, whose positions start at the first token
and whose windows reach one token less far than transformers', which this project follows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from tiny import TINY_ROTARY, changed, ragged_inputs, random_params

from specdec.models.transformer.network import Transformer

theirs = pytest.importorskip(
    "gemma.research.t5gemma.t5gemma", reason="google-deepmind/gemma is not installed"
)
NORMS = {
    "pre_self_attention": "pre_attention", "post_self_attention": "post_attention",
    "pre_cross_attention": "pre_cross_attention", "post_cross_attention": "post_cross_attention",
    "pre_mlp": "pre_ffw", "post_mlp": "post_ffw",
}  # fmt: skip
ATTENTIONS = {"self_attention": "attn", "encoder_decoder_attention": "cross_attn"}
# Their scores are divided by the root of head_dim, and their keys are shared by some heads each.
SCALE = {"query_scalar": None}
ENCODER = changed(
    TINY_ROTARY["t5gemma"].encoder, **SCALE, num_heads=4, num_kv_heads=2, window=(2, 2)
)
CONFIG = changed(TINY_ROTARY["t5gemma"], **SCALE, encoder=ENCODER)


def their_model():
    def stack(ours, **more):
        modules = theirs.modules
        kinds = (modules.AttentionType.GLOBAL, modules.AttentionType.LOCAL_SLIDING)
        return modules.TransformerConfig(
            num_layers=ours.num_layers, num_embed=CONFIG.vocab_size, embed_dim=ours.d_model,
            hidden_dim=ours.d_ff, num_heads=ours.num_heads, head_dim=ours.head_dim,
            num_kv_heads=ours.num_kv_heads, final_logit_softcap=CONFIG.logits_softcap,
            attention_types=tuple(kinds[ours.slides(i)] for i in range(ours.num_layers)),
            use_post_attn_norm=True, use_post_ffw_norm=True,
            query_pre_attn_norm=modules.QueryPreAttentionNormalisation.BY_ONE_OVER_SQRT_HEAD_DIM,
            attn_logits_soft_cap=ours.attention_softcap, sliding_window_size=ours.window[0] + 1,
            **more,
        )  # fmt: skip

    encoder = stack(ENCODER, enable_cross_attention=False, bidirectional=True)
    width = {"kv_embed_dim": ENCODER.d_model}
    decoder = stack(CONFIG, enable_cross_attention=True, bidirectional=False, **width)
    config = theirs.T5GemmaConfig(encoder, decoder)
    return config.make("t5gemma", dtype=jnp.float32, target_tokens="t", input_tokens="i")


def their_params(params):
    found = {}
    flat = flatten_dict(params, sep="/")
    for part, stack in CONFIG.stacks.items():
        embedding = "encoder/token_embedder" if part == "encoder" else "token_embedder"
        found[f"{part}/embedder/input_embedding"] = flat[f"{embedding}/embedding"]
        found[f"{part}/final_norm/scale"] = flat[f"{part}/{part}_norm/scale"]
        for i in range(stack.num_layers):
            ours, other = f"{part}/layers_{i}", f"{part}/layer_{i}"
            for name, norm in NORMS.items():
                if f"{ours}/{name}_layer_norm/scale" in flat:
                    found[f"{other}/{norm}_norm/scale"] = flat[f"{ours}/{name}_layer_norm/scale"]
            for name, attention in ATTENTIONS.items():
                if f"{ours}/{name}/query/kernel" not in flat:
                    continue
                *split, out = (
                    flat[f"{ours}/{name}/{k}/kernel"] for k in ("query", "key", "value", "out")
                )
                split = [k.reshape(len(k), -1, stack.head_dim).swapaxes(0, 1) for k in split]
                found[f"{other}/{attention}/q_einsum/w"] = split[0]
                found[f"{other}/{attention}/kv_einsum/w"] = np.stack(split[1:])
                found[f"{other}/{attention}/attn_vec_einsum/w"] = out.reshape(
                    stack.num_heads, stack.head_dim, -1
                )
            gates = [flat[f"{ours}/mlp/wi_{k}/kernel"] for k in (0, 1)]
            found[f"{other}/mlp/gating_einsum"] = np.stack(gates)
            found[f"{other}/mlp/linear"] = flat[f"{ours}/mlp/wo/kernel"]
    return unflatten_dict(found, sep="/")


def test_logits_are_those_of_their_code():
    params = jax.device_get(random_params(CONFIG, 0))
    texts = np.where(ragged_inputs(3, 9, 19) == 1, 2, ragged_inputs(3, 9, 19))
    outputs = np.random.default_rng(0).integers(1, 19, (3, 8))
    found = Transformer(CONFIG).apply({"params": params}, texts, outputs)
    expected = their_model().apply({"params": their_params(params)}, outputs, texts).logits
    np.testing.assert_allclose(found, expected, atol=1e-4)
