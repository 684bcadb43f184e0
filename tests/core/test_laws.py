"""Divergence, rejection sampling and lenience, each against its definition spelled out."""

import jax.numpy as jnp
import numpy as np
import pytest
import theory_distributions

from specdec.core.residuals import acceptance_prob
from specdec.core.topology import Topology
from specdec.types import Draft

LENIENCES = (1.0, 0.7, 0.5, 0.3, 0.1, 0.01)


def distributions(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Distributions with some zeros, spread unevenly."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=shape) ** 2 * (rng.random(shape) < 0.8)
    weights[..., 0] += 0.01
    return weights / weights.sum(-1, keepdims=True)


P, Q = distributions(0, (4, 50, 7)), distributions(1, (4, 50, 7))


def test_divergence_by_hand():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    assert theory_distributions.lk_divergence(p, q) == pytest.approx(0.4)
    assert theory_distributions.alpha_of(p, q) == pytest.approx(0.6)


def test_divergence_is_a_symmetric_distance_in_0_1():
    divergence = theory_distributions.lk_divergence(P, Q)
    assert divergence.shape == (4, 50)
    np.testing.assert_allclose(divergence, theory_distributions.lk_divergence(Q, P), rtol=1e-12)
    np.testing.assert_allclose(divergence, 1 - np.minimum(P, Q).sum(-1), atol=1e-12)
    assert divergence.min() > 0
    assert divergence.max() < 1
    np.testing.assert_array_equal(theory_distributions.lk_divergence(P, P), 0)
    disjoint = theory_distributions.lk_divergence(np.array([0.5, 0.5, 0]), np.array([0, 0, 1.0]))
    assert disjoint == 1


def test_alpha_is_the_mean_acceptance_of_the_verifiers():
    draft = Draft(jnp.zeros((4, 50), jnp.int32), jnp.asarray(Q, jnp.float32), Topology.chain(50))
    beta = np.asarray(acceptance_prob(jnp.asarray(P, jnp.float32), draft))
    assert theory_distributions.alpha_of(P, Q) == pytest.approx(beta.mean(), abs=1e-6)


def test_rejection_sampling_by_its_definition():
    """Accept x ~ q with p(x) / (M q(x)), M the least number that makes it a probability."""
    for p, q in zip(P[0], Q[0], strict=True):
        found = theory_distributions.rejection_acceptance(p, q)
        if np.any((p > 0) & (q == 0)):
            assert found == 0
            continue
        m = max(p[x] / q[x] for x in range(7) if p[x] > 0)
        accepted = sum(q[x] * (p[x] / (m * q[x])) for x in range(7) if q[x] > 0)
        assert found == pytest.approx(accepted, rel=1e-12)


def test_speculative_sampling_accepts_no_less_than_rejection_sampling():
    rejection = theory_distributions.rejection_acceptance(P, Q)
    speculative = 1 - theory_distributions.lk_divergence(P, Q)
    assert np.all(rejection <= speculative)
    assert np.any((rejection > 0) & (rejection < speculative / 2))
    np.testing.assert_allclose(theory_distributions.rejection_acceptance(P, P), 1)


@pytest.mark.parametrize("lenience", LENIENCES)
def test_lenience_by_the_rule(lenience):
    """Every token's path: guessed and accepted, or drawn from the residual after a rejection."""
    for p, q in zip(P[1], Q[1], strict=True):
        accept = [min(1.0, p[x] / (lenience * q[x])) if q[x] > 0 else 0.0 for x in range(7)]
        accepted = np.array([q[x] * accept[x] for x in range(7)])
        residual = np.array([max(0.0, p[x] - q[x]) for x in range(7)])
        emitted = accepted + (1 - accepted.sum()) * residual / residual.sum()
        distribution = theory_distributions.lenient_distribution(p, q, lenience)
        np.testing.assert_allclose(distribution, emitted, atol=1e-12)
        assert theory_distributions.lenient_acceptance(p, q, lenience) == pytest.approx(
            accepted.sum()
        )
        distance = 0.5 * sum(abs(emitted[x] - p[x]) for x in range(7))
        assert theory_distributions.lenient_distance(p, q, lenience) == pytest.approx(
            distance, abs=1e-12
        )


@pytest.mark.parametrize("lenience", LENIENCES)
def test_the_lenient_law_sums_to_one_and_stays_below_p_over_l(lenience):
    distribution = theory_distributions.lenient_distribution(P, Q, lenience)
    np.testing.assert_allclose(distribution.sum(-1), 1, atol=1e-12)
    assert distribution.min() >= 0
    assert np.all(distribution <= P / lenience + 1e-12)
    assert np.all(distribution <= theory_distributions.lenient_bound(P, lenience) + 1e-12)
    assert np.any((P > 0) & (distribution > 0.999 * P / lenience))  # The bound is tight.


def test_the_bound_is_no_more_than_one():
    np.testing.assert_allclose(
        theory_distributions.lenient_bound(np.array([0.1, 0.3, 0.6]), 0.5), [0.2, 0.6, 1]
    )


def test_lenience_1_is_exact():
    np.testing.assert_allclose(theory_distributions.lenient_distribution(P, Q, 1.0), P, atol=1e-12)
    np.testing.assert_array_equal(theory_distributions.lenient_distance(P, Q, 1.0), 0)
    exact = 1 - theory_distributions.lk_divergence(P, Q)
    np.testing.assert_allclose(
        theory_distributions.lenient_acceptance(P, Q, 1.0), exact, atol=1e-12
    )


def test_a_draft_equal_to_the_target_needs_no_residual():
    for lenience in LENIENCES:
        np.testing.assert_allclose(
            theory_distributions.lenient_distribution(P, P, lenience), P, atol=1e-12
        )


def test_what_lenience_accepts_more_it_moves_away():
    exact = theory_distributions.lenient_acceptance(P, Q, 1.0)
    acceptance = [theory_distributions.lenient_acceptance(P, Q, lenience) for lenience in LENIENCES]
    assert np.all(np.diff(acceptance, axis=0) >= 0)
    for found, lenience in zip(acceptance, LENIENCES, strict=True):
        distance = theory_distributions.lenient_distance(P, Q, lenience)
        np.testing.assert_allclose(distance, found - exact, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ([0.5, 0.5], [0.2, 0.3, 0.5], r"p and q must have one shape, got \(2,\) and \(3,\)"),
        ([0.5, 0.6], [0.5, 0.5], "p must sum to 1 over the last axis, got 1.1"),
        ([0.5, 0.5], [1.5, -0.5], "q must be >= 0 everywhere, got -0.5"),
        ([0.5, np.nan], [0.5, 0.5], "p must be >= 0 everywhere"),
        (np.zeros((0, 3)), np.zeros((0, 3)), r"p is empty, of shape \(0, 3\)"),
    ],
)
def test_refuses_what_is_no_distribution(p, q, message):
    p, q = np.array(p), np.array(q)
    for call in (
        lambda: theory_distributions.lk_divergence(p, q),
        lambda: theory_distributions.alpha_of(p, q),
        lambda: theory_distributions.rejection_acceptance(p, q),
        lambda: theory_distributions.lenient_acceptance(p, q, 0.5),
        lambda: theory_distributions.lenient_distribution(p, q, 0.5),
        lambda: theory_distributions.lenient_distance(p, q, 0.5),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.1, np.nan])
def test_refuses_lenience_outside_0_1(lenience):
    p = np.array([0.5, 0.5])
    for call in (
        lambda: theory_distributions.lenient_acceptance(p, p, lenience),
        lambda: theory_distributions.lenient_distribution(p, p, lenience),
        lambda: theory_distributions.lenient_bound(p, lenience),
        lambda: theory_distributions.lenient_distance(p, p, lenience),
    ):
        with pytest.raises(ValueError, match=r"lenience must be in \(0, 1\]"):
            call()
