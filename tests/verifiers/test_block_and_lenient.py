"""Block verification and lenience, block by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.standardize import standardize
from specdec.core.topology import Topology
from specdec.testing.oracle import Tape
from specdec.types import Draft, PointMass, SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier

GAMMA, V = 3, 4


def blocks(seed, rows):
    """Random distributions, and guesses drawn from the draft's."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(V, 0.5), (rows, GAMMA + 1)).astype(np.float32)
    q = rng.dirichlet(np.full(V, 0.5), (rows, GAMMA)).astype(np.float32)
    tokens = (np.cumsum(q, axis=-1) < rng.random((rows, GAMMA, 1)) * q.sum(-1, keepdims=True)).sum(
        -1
    )
    return jnp.asarray(p), Draft(jnp.asarray(tokens), jnp.asarray(q), Topology.chain(GAMMA))


judged = jax.jit(lambda verifier, *given: verifier(*given), static_argnums=0)


def tape(rng, rows):
    return Tape.of(*(jnp.asarray(rng.random((rows, n)), jnp.float32) for n in (GAMMA, GAMMA, 1)))


def test_block_verification_keeps_more_on_average():
    """60,000 blocks: the difference is far beyond its standard error (about 0.003)."""
    rows, rng = 60_000, np.random.default_rng(1)
    p, draft = blocks(0, rows)
    numbers = tape(rng, rows)
    token, block = (
        np.asarray(judged(v, numbers, p, draft).num_accepted)
        for v in (TokenVerifier(), BlockVerifier())
    )
    gain = (block - token).mean()
    assert gain > 0.02
    # E[tau] = sum of E[p_i] (Sun et al. 2024); p_i are the verifier's own.
    reach = np.asarray(BlockVerifier()._reach(p, draft))[:, 1:].sum(axis=1)
    error = np.sqrt((block.var() + reach.var()) / rows)
    assert abs(block.mean() - reach.mean()) < 5.4 * error  # False alarm below 1e-7.


def test_block_verification_of_one_guess_is_token_verification():
    rows = 5_000
    p, draft = blocks(3, rows)
    one = Draft(draft.tokens[:, :1], draft.probs[:, :1], Topology.chain(1))
    numbers = tape(np.random.default_rng(2), rows)
    a, b = (judged(v, numbers, p[:, :2], one) for v in (TokenVerifier(), BlockVerifier()))
    np.testing.assert_array_equal(a.num_accepted, b.num_accepted)
    np.testing.assert_array_equal(a.tokens[:, 0], b.tokens[:, 0])


def test_a_perfect_draft_is_accepted_whole():
    p, draft = blocks(4, 200)
    same = Draft(draft.tokens, p[:, :GAMMA], Topology.chain(GAMMA))
    verdict = judged(BlockVerifier(), tape(np.random.default_rng(0), 200), p, same)
    assert (np.asarray(verdict.num_accepted) == GAMMA).all()


@pytest.mark.parametrize("verifier", [BlockVerifier(), LenientVerifier(0.5)])
def test_guesses_that_were_not_made_are_not_accepted(verifier):
    p, draft = blocks(5, 500)
    counts = jnp.arange(500) % (GAMMA + 1)
    fewer = Draft(draft.tokens, draft.probs, draft.topology, counts)
    verdict = judged(verifier, tape(np.random.default_rng(0), 500), p, fewer)
    assert (verdict.num_accepted <= counts).all()
    assert (verdict.num_emitted == verdict.num_accepted + 1).all()


def test_greedy_lenience_accepts_what_is_likely_enough():
    """A.5: accept x if p(x) >= l max p; the correction is the argmax."""
    logits = jnp.log(jnp.array([[[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]]))
    target = standardize(logits, SamplingConfig(0.0).traced(), keep_probs=True)
    numbers = Tape.of(jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.zeros((1, 1)))

    def verify(lenience, *guesses):
        draft = Draft(jnp.array([guesses]), None, Topology.chain(2))
        verdict = judged(LenientVerifier(lenience), numbers, target, draft)
        return [int(t) for t in verdict.tokens[0, : int(verdict.num_emitted[0])]]

    assert verify(0.6, 1, 2) == [1, 2, 1]  # 0.3 >= 0.6 * 0.5
    assert verify(0.61, 1, 2) == [0]
    assert verify(0.3, 2, 0) == [2, 0, 1]
    assert verify(0.34, 2, 0) == [2, 2]  # 0.2 < 0.34 * 0.6
    assert verify(1.0, 0, 2) == [0, 2, 1]


def test_a_greedy_target_keeps_no_probabilities_unless_asked():
    logits = jnp.zeros((1, 2, 3))
    assert standardize(logits, SamplingConfig(0.0).traced()).relative is None
    assert isinstance(standardize(logits, SamplingConfig(0.0).traced()), PointMass)


@pytest.mark.parametrize("lenience", [0.0, -0.1, 1.5])
def test_lenience_out_of_range(lenience):
    with pytest.raises(ValueError, match=r"lenience must be in \(0, 1\]"):
        LenientVerifier(lenience)


@pytest.mark.parametrize("verifier", [BlockVerifier(), LenientVerifier(0.5)])
def test_trees_are_refused(verifier):
    p, draft = blocks(0, 1)
    tree = Draft(draft.tokens, draft.probs, Topology((-1, -1, -1)))
    with pytest.raises(ValueError, match="needs a chain of guesses"):
        verifier(tape(np.random.default_rng(0), 1), p, tree)


VERIFIERS = [TokenVerifier(), BlockVerifier(), LenientVerifier(1.0), LenientVerifier(0.3)]


@pytest.mark.parametrize("fewer", [False, True])
@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
def test_a_verdict_says_what_was_examined_and_how_likely_it_was(verifier, fewer):
    """acceptance_prob is sum_x min(p / l, q) at every level, examined up to the rejection."""
    rows = 200
    p, draft = blocks(7, rows)
    counts = jnp.arange(rows) % (GAMMA + 1) if fewer else jnp.full(rows, GAMMA)
    draft = Draft(draft.tokens, draft.probs, draft.topology, counts if fewer else None)
    verdict = judged(verifier, tape(np.random.default_rng(0), rows), p, draft)
    lenience = getattr(verifier, "lenience", 1.0)
    expected = np.minimum(np.asarray(p)[:, :GAMMA] / lenience, draft.probs).sum(-1)
    np.testing.assert_allclose(verdict.acceptance_prob, expected, atol=1e-6)
    if lenience < 1:
        exact = judged(
            TokenVerifier(), tape(np.random.default_rng(0), rows), p, draft
        ).acceptance_prob
        assert (verdict.acceptance_prob >= exact).all()
        assert float(jnp.mean(verdict.acceptance_prob - exact)) > 0.1
    kept = np.asarray(verdict.num_accepted)
    np.testing.assert_array_equal(verdict.examined, np.minimum(kept + 1, counts))
    np.testing.assert_array_equal(
        verdict.path, np.broadcast_to(np.arange(GAMMA + 1), (rows, GAMMA + 1))
    )


@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
def test_a_greedy_verdict_too(verifier):
    logits = jnp.log(jnp.array([[[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]]))
    target = standardize(logits, SamplingConfig(0.0).traced(), keep_probs=verifier.needs_probs)
    q = jnp.array([[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    draft = Draft(jnp.array([[0, 0]]), q, Topology.chain(2))
    verdict = judged(verifier, Tape.of(*(jnp.zeros((1, n)) for n in (2, 2, 1))), target, draft)
    if getattr(verifier, "lenience", 1.0) == 0.3:  # 1 and 2 are likely enough behind 0; all are.
        np.testing.assert_allclose(verdict.acceptance_prob, [[1, 1]])
        assert verdict.examined.tolist() == [2]
        assert verdict.tokens.tolist() == [[0, 0, 1]]
    else:
        np.testing.assert_allclose(verdict.acceptance_prob, [[0.25, 0.25]])
        assert (verdict.examined.tolist(), verdict.num_accepted.tolist()) == ([2], [1])
        assert verdict.tokens[0, :2].tolist() == [0, 2]
