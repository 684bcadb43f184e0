"""The first parameters of an EAGLE-style layer, which is trained as it decodes."""

from __future__ import annotations

import jax

from specdec.models.eagle.config import EagleConfig
from specdec.models.transformer import network


def init_params(config: EagleConfig, key: jax.Array) -> dict:
    """Random parameters, float32: a T5 decoder's layer in T5X's names, and three projections.

    No kernel is 0: an optimizer step is in proportion to the RMS of a parameter.
    """
    layer, state, token, out, *cross = jax.random.split(key, 6)
    width, inner = config.width, config.inner_width

    def projection(key, features, width=width):
        return jax.random.normal(key, (width, features)) * width**-0.5

    decoder = network.init_params(config.layer, layer)["decoder"]
    del decoder["logits_dense"]
    own = decoder["layers_0"]
    if config.reads_encoding:
        for name, key in zip(("key", "value"), cross, strict=True):
            kernel = projection(key, config.num_heads * config.head_dim, config.encoder_width)
            own["encoder_decoder_attention"][name]["kernel"] = kernel
    else:
        del own["encoder_decoder_attention"], own["pre_cross_attention_layer_norm"]
    return {
        "state_in": projection(state, inner), "token_in": projection(token, inner),
        "decoder": decoder, "out": jax.random.normal(out, (inner, width)) * inner**-0.5,
    }  # fmt: skip
