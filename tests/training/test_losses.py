"""Losses of distillation against their formulas in numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow import slow

from specdec.training import losses


@pytest.fixture
def distributions():
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(5), size=(2, 3)), rng.dirichlet(np.ones(5), size=(2, 3))


def expected(name, p, q):
    alpha, mean = np.minimum(p, q).sum(-1), (p + q) / 2
    kl = (p * np.log(p / q)).sum(-1)
    share = np.exp(-3 * alpha)
    return {
        "forward_kl": kl,
        "reverse_kl": (q * np.log(q / p)).sum(-1),
        "jensen_shannon": ((p * np.log(p / mean)).sum(-1) + (q * np.log(q / mean)).sum(-1)) / 2,
        "total_variation": 1 - alpha,
        "negative_log_acceptance": -np.log(alpha),
        "hybrid": share * kl + (1 - share) * (1 - alpha),
    }[name]


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_follow_their_formulas(name, distributions):
    p, q = distributions
    result = losses.LOSSES[name](np.log(p), np.log(q))
    assert result.shape == (2, 3)
    np.testing.assert_allclose(result, expected(name, p, q), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", [name if name in ("forward_kl", "hybrid") else slow(name) for name in losses.LOSSES]
)
def test_following_the_gradient_raises_alpha(name, distributions):
    log_p = jnp.log(jnp.asarray(distributions[0]))

    def mean(logits):
        return jnp.mean(losses.LOSSES[name](log_p, jax.nn.log_softmax(logits)))

    def alpha(logits):
        return float(jnp.mean(1 - losses.total_variation(log_p, jax.nn.log_softmax(logits))))

    first = logits = jnp.log(jnp.asarray(distributions[1]))
    for _ in range(200):
        logits -= 0.3 * jax.grad(mean)(logits)
    assert alpha(logits) > alpha(first) + 0.1


def test_jensen_shannon_lies_between_the_two_kls(distributions):
    """With w near 0 it is w times forward KL, near 1 it is 1 - w times reverse KL."""
    log_p, log_q = map(jnp.log, map(jnp.asarray, distributions))
    for weight, kl in ((1e-3, losses.forward_kl), (1 - 1e-3, losses.reverse_kl)):
        scaled = losses.jensen_shannon(log_p, log_q, weight) / min(weight, 1 - weight)
        np.testing.assert_allclose(scaled, kl(log_p, log_q), rtol=0.05)


def test_the_hybrid_weight_has_no_gradient(distributions):
    """d/dq [l KL + (1 - l) TV] with l a number."""
    log_p, log_q = map(jnp.log, map(jnp.asarray, distributions))
    share = jnp.exp(-3 * (1 - losses.total_variation(log_p, log_q)))

    def held(log_q):
        kl, variation = losses.forward_kl(log_p, log_q), losses.total_variation(log_p, log_q)
        return jnp.sum(share * kl + (1 - share) * variation)

    found = jax.grad(lambda log_q: jnp.sum(losses.hybrid(log_p, log_q)))(log_q)
    np.testing.assert_allclose(found, jax.grad(held)(log_q), rtol=1e-5)
