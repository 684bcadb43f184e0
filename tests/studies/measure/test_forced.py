"""Forced acceptance accepts with the probability it is told, and says that it is not lossless."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.randomness import BlockRandom, row_keys
from specdec.core.topology import Topology
from specdec.studies.measure.forced import ForcedAcceptance
from specdec.types import Draft, PointMass
from specdec.verifiers.token import TokenVerifier

GAMMA, VOCAB = 3, 5


def _verdict(alpha, batch, greedy):
    random = BlockRandom.of(row_keys(0, jnp.arange(batch)), jnp.zeros((batch,), jnp.int32))
    tokens = jnp.full((batch, GAMMA), 2)
    if greedy:  # The target never agrees.
        target, probs = PointMass(jnp.full((batch, GAMMA + 1), 3)), None
    else:
        target = jnp.broadcast_to(jax.nn.one_hot(3, VOCAB), (batch, GAMMA + 1, VOCAB))
        probs = jnp.broadcast_to(jax.nn.one_hot(2, VOCAB), (batch, GAMMA, VOCAB))
    draft = Draft(tokens, probs, Topology.chain(GAMMA))
    return ForcedAcceptance(alpha)(random, target, draft)


@pytest.mark.parametrize("greedy", [True, False])
def test_accepts_with_probability_alpha_whatever_the_target_says(greedy):
    batch, alpha = 4000, 0.7
    accepted = np.asarray(_verdict(alpha, batch, greedy).num_accepted)
    # Seed fixed; each frequency lies within 5 standard errors (false alarm 2e-6 for all three).
    for least in range(1, GAMMA + 1):
        expected = alpha**least
        error = (expected * (1 - expected) / batch) ** 0.5
        assert abs(np.mean(accepted >= least) - expected) < 5 * error


@pytest.mark.parametrize("greedy", [True, False])
def test_the_last_token_is_the_targets_own(greedy):
    verdict = _verdict(0.5, 64, greedy)
    rows = np.arange(64)
    assert np.all(np.asarray(verdict.tokens)[rows, verdict.num_accepted] == 3)


@pytest.mark.parametrize("greedy", [True, False])
def test_reports_the_alpha_that_it_was_told(greedy):
    verdict = _verdict(0.7, 64, greedy)
    np.testing.assert_allclose(verdict.acceptance_prob, np.full((64, GAMMA), 0.7), rtol=1e-6)
    expected = np.minimum(np.asarray(verdict.num_accepted) + 1, GAMMA)
    np.testing.assert_array_equal(verdict.examined, expected)


@pytest.mark.parametrize(("alpha", "accepted"), [(0.0, 0), (1.0, GAMMA)])
def test_extremes(alpha, accepted):
    assert np.all(np.asarray(_verdict(alpha, 50, True).num_accepted) == accepted)


def test_says_that_it_is_not_lossless():
    assert not ForcedAcceptance(0.5).lossless
    assert TokenVerifier().lossless


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_outside_its_range(alpha):
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\]"):
        ForcedAcceptance(alpha)
