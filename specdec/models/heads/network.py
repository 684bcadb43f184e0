"""Heads of blockwise decoding and of Medusa, as linen modules.

Both are residual blocks on the target's hidden state; the logits are the target's own, so that a
file of heads is small. Medusa's have logits of their own in the source; a square matrix before
the target's stands for them here, for a block of SiLU alone cannot take back what it is added to.

Sources: Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models", section 4
(one feed-forward layer for all offsets, a residual connection for each); Cai et al. 2024, "Medusa",
section 2.1 (a residual block with SiLU for each head).

Shapes: D the target's hidden width, K heads, F hidden units.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from specdec.models.heads.config import HeadsConfig
from specdec.models.products.plain import precision


class HeadsNetwork(nn.Module):
    """Hidden states for the target's logits, one for each distance."""

    config: HeadsConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b k d"]:
        cfg = self.config
        x = hidden.astype(jnp.float32)
        # Targets normalise before their logits, so the scale of what they are given is free.
        x *= jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
        x = x[..., None, :]
        # No kernel is 0: an optimizer step is in proportion to the RMS of a parameter.
        init, zeros = nn.initializers.lecun_normal(), nn.initializers.zeros_init()
        if cfg.kind == "medusa":
            shape = (cfg.count, cfg.width, cfg.width)
            kernel = self.param("kernel", nn.initializers.lecun_normal(batch_axis=0), shape)
            bias = self.param("bias", zeros, shape[:2])
            out = self.param("out", nn.initializers.lecun_normal(batch_axis=0), shape)
            einsum = functools.partial(jnp.einsum, precision=precision(x))
            x += nn.silu(einsum("...d,kde->...ke", x[..., 0, :], kernel) + bias)
            return einsum("...kd,kde->...ke", x, out)
        wi = self.param("wi", init, (cfg.width, cfg.hidden_units))
        bi = self.param("bi", zeros, (cfg.hidden_units,))
        wo = self.param("wo", init, (cfg.hidden_units, cfg.count * cfg.width))
        bo = self.param("bo", zeros, (cfg.count * cfg.width,))
        product = functools.partial(jnp.matmul, precision=precision(x))
        out = product(nn.relu(product(x, wi) + bi), wo) + bo
        return x + out.reshape(*hidden.shape[:-1], cfg.count, cfg.width)


def init_params(config: HeadsConfig, key: jax.Array) -> dict:
    """Parameters of heads that have learned nothing, float32."""
    return dict(HeadsNetwork(config).init(key, jnp.ones((1, config.width)))["params"])
