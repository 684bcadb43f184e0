"""Losses of distillation: how far a draft's distribution is from its target's.

Position by position, with p the target's and q the draft's distribution over the vocabulary, a
token is accepted with probability alpha = sum_x min(p, q) = 1 - TV(p, q) (Leviathan et al. 2023,
corollary 3.6). Every loss here is 0 where p = q. A draft of fewer parameters does not reach that,
and the loss decides which other distribution it learns.

Sources: Hinton et al. 2015 (forward KL, soft targets); Zhou et al. 2023, "DistillSpec" (the choice
of a divergence for speculative decoding); Liu et al. 2023, "Online Speculative Decoding" (forward
and reverse KL on what was just decoded); Agarwal et al. 2023, "GKD" (Jensen-Shannon with a weight);
Goel et al. 2024 ("TVD++": the gradient of total variation is a policy gradient, which vanishes
where little is accepted); Samarin et al. 2026, "LK Losses" (-log alpha, and total variation with a
KL whose weight falls as alpha rises).

All take log p and log q, [..., V] float32, and return [...]; those in nats say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from specdec.core.fields import OneOf

Divergence = Callable[[jax.Array, jax.Array], jax.Array]
# Of the hybrid: KL has the weight exp(-3 alpha), 1 at alpha 0 and 0.05 at alpha 1.
HYBRID_RATE = 3.0


def forward_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p || q) = sum_x p (log p - log q), in nats."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def reverse_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(q || p) = sum_x q (log q - log p), in nats."""
    return forward_kl(log_q, log_p)


def jensen_shannon(log_p: jax.Array, log_q: jax.Array, weight: float = 0.5) -> jax.Array:
    """w KL(p || m) + (1 - w) KL(q || m) with m = w p + (1 - w) q, in nats.

    Divided by w it tends to forward KL for small weights, and divided by 1 - w to reverse KL for
    weights near 1 (Agarwal et al. 2023).

    Args:
      weight: w, between 0 and 1 and neither of them.
    """
    log_m = jnp.logaddexp(log_p + jnp.log(weight), log_q + jnp.log1p(-weight))
    return weight * forward_kl(log_p, log_m) + (1 - weight) * forward_kl(log_q, log_m)


def total_variation(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """TV(p, q) = sum_x |p - q| / 2 = 1 - alpha."""
    return 1 - jnp.sum(jnp.exp(jnp.minimum(log_p, log_q)), axis=-1)


def negative_log_acceptance(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """-log alpha, in nats: its gradient is that of total variation over alpha.

    So a position where almost nothing is accepted is learned from as well (Samarin et al. 2026).
    """
    return -jax.nn.logsumexp(jnp.minimum(log_p, log_q), axis=-1)


def hybrid(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """l KL(p || q) + (1 - l) TV(p, q) with l = exp(-3 alpha), held constant (Samarin et al. 2026).

    Each position has its own weight.
    """
    variation = total_variation(log_p, log_q)
    weight = jax.lax.stop_gradient(jnp.exp(-HYBRID_RATE * (1 - variation)))
    return weight * forward_kl(log_p, log_q) + (1 - weight) * variation


def comparison(log_p: jax.Array, log_q: jax.Array) -> dict[str, jax.Array]:
    """``alpha``, sum_x min(p, q), and ``agreement`` of the largest entries; [..., V] -> [...]."""
    agreement = jnp.argmax(log_p, axis=-1) == jnp.argmax(log_q, axis=-1)
    return {"alpha": 1 - total_variation(log_p, log_q), "agreement": agreement}


LOSSES: dict[str, Divergence] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
    "negative_log_acceptance": negative_log_acceptance,
    "hybrid": hybrid,
}
LossName = Annotated[str, OneOf(*LOSSES)]

# Losses that also count tokens whose target probability is not known.
OF_ALL_TOKENS = ("reverse_kl", "jensen_shannon")
