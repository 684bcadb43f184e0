"""Expected accepted guesses: against the verifiers themselves, and in a whole decode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.randomness import BlockRandom, row_keys
from specdec.core.topology import Topology
from specdec.studies.measure import expected_accepted as verification
from specdec.studies.measure.expected_accepted import RowExpectation, expected_accepted
from specdec.types import Draft, PointMass
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.token import TokenVerifier

VOCAB, GAMMA, ROWS = 4, 3, 40_000
NEVER = ()  # No token is EOS.


@pytest.fixture(scope="module")
def block():
    """Many rows of one context-dependent p and q, each with guesses of its own drawn from q."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(VOCAB), (2, GAMMA + 1, VOCAB)).astype(np.float32)
    tokens = np.zeros((ROWS, GAMMA + 1), int)  # The token before each guess.
    for i in range(GAMMA):
        cumulative = q[i, tokens[:, i]].cumsum(axis=1)
        tokens[:, i + 1] = (rng.random(ROWS)[:, None] > cumulative).sum(axis=1).clip(max=VOCAB - 1)
    target = p[np.arange(GAMMA + 1), tokens]
    probs = q[np.arange(GAMMA), tokens[:, :-1]]
    draft = Draft(jnp.asarray(tokens[:, 1:]), jnp.asarray(probs), Topology.chain(GAMMA))
    return jnp.asarray(target), draft


@pytest.mark.parametrize(("index", "verifier"), enumerate([TokenVerifier(), BlockVerifier()]))
def test_the_verifiers_keep_as_many(block, index, verifier):
    """The mean over 40,000 blocks is within 5 standard errors: 6e-7 of false alarm."""
    target, draft = block
    random = BlockRandom.of(row_keys(0, jnp.arange(ROWS)), jnp.zeros((ROWS,), jnp.int32))
    kept = np.asarray(jax.jit(verifier)(random, target, draft).num_accepted)
    expected = np.asarray(expected_accepted(target, draft, NEVER)[index])
    # Each block's own expectation: the noise of its guesses is in both, and cancels.
    error = kept - expected
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(ROWS)
    assert error.std() > 0.1


def test_block_verification_keeps_more_in_every_block(block):
    token, kept = expected_accepted(*block, NEVER)
    assert np.all(kept >= token - 1e-6)
    assert float(jnp.mean(kept - token)) > 0.01


def test_by_hand():
    """r = 1/2, 3, 1: token keeps 1/2 (1 + 1 + 1); block 1/2, then min(1, 3/2) = 1, then 1."""
    p = jnp.asarray([[[0.25, 0.75], [0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]])
    q = jnp.asarray([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]])
    draft = Draft(jnp.zeros((1, 3), int), q, Topology.chain(3))
    token, kept = expected_accepted(p, draft, NEVER)
    assert (float(token[0]), float(kept[0])) == pytest.approx((1.5, 2.5))
    fewer = Draft(draft.tokens, q, draft.topology, num_guesses=jnp.asarray([2]))
    assert float(expected_accepted(p, fewer, NEVER)[1][0]) == pytest.approx(1.5)
    ended = Draft(jnp.asarray([[0, 1, 0]]), q, draft.topology)
    assert float(expected_accepted(p, ended, (1,))[1][0]) == pytest.approx(0.5 + 1 / 6)


def test_point_masses():
    draft = Draft(jnp.asarray([[3, 5, 6]]), None, Topology.chain(3))
    target = PointMass(jnp.asarray([[3, 5, 7, 1]]))
    for kept in expected_accepted(target, draft, NEVER):
        assert float(kept[0]) == 2
    p = jnp.asarray([[[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]])
    draft = Draft(jnp.asarray([[0, 0]]), None, Topology.chain(2))
    for kept in expected_accepted(p, draft, NEVER):  # No ratio above 1: both alike.
        assert float(kept[0]) == pytest.approx(0.25 + 0.125)


def test_summary():
    rows = [RowExpectation(0, 2, 3.0, 3.5), RowExpectation(1, 8, 3.0, 4.5)]
    found = verification.summary(rows)
    assert (found["token"], found["block"]) == pytest.approx((1.6, 1.8))
    assert found["difference"] == pytest.approx(0.2)
    assert np.mean(found["interval"]) == pytest.approx(0.2)
    assert (found["num_blocks"], found["num_rows"]) == (10, 2)
    with pytest.raises(ValueError, match="no block"):
        verification.summary([RowExpectation(0, 0, 0.0, 0.0)])
