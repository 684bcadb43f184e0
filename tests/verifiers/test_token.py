"""Token verification, block by block."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.randomness import BlockRandom, row_keys
from specdec.core.topology import Topology
from specdec.testing.mutants import DroppedBonus
from specdec.testing.oracle import Tape
from specdec.types import Draft, PointMass
from specdec.verifiers.token import TokenVerifier

P = jnp.array([[[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25]]])
Q = jnp.array([[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])


def verify(tokens, acceptance, final, target=P, probs=Q, verifier=TokenVerifier):
    draft = Draft(jnp.array([tokens]), probs, Topology.chain(2))
    verdict = verifier()(
        Tape.of(jnp.zeros((1, 2)), jnp.array([acceptance]), jnp.array([[final]])), target, draft
    )
    count = int(verdict.num_emitted[0])
    return [int(t) for t in verdict.tokens[0, :count]], int(verdict.num_accepted[0])


def test_all_accepted_adds_a_bonus_from_p():
    assert verify([0, 1], [0.99, 0.99], 0.3) == ([0, 1, 1], 2)


def test_first_rejection_adds_a_correction_from_the_residual():
    # p - q = (0.25, -0.25, 0): the correction is 0, whatever the number.
    for final in (0.0, 0.5, 0.999):
        assert verify([1, 1], [0.5, 0.0], final) == ([0], 0)


def test_acceptance_is_strict():
    # p/q = 0.5 exactly: u = 0.5 rejects, just below accepts. p = 0: even u = 0 rejects.
    assert verify([1, 1], [np.nextafter(np.float32(0.5), np.float32(0)), 0.0], 0.3)[1] == 2
    assert verify([1, 1], [0.5, 0.0], 0.3)[1] == 0
    assert verify([0, 0], [0.0, 0.0], 0.3)[1] == 1


def test_a_guess_behind_a_rejection_is_not_looked_at():
    assert verify([1, 1], [0.9, 0.0], 0.0)[1] == 0


def test_point_mass_drafts():
    # Accept with p(x) = 0.25; rejected, x leaves p: (0.5, 0, 0.25).
    assert verify([1, 1], [0.2, 0.4], 0.3, probs=None) == ([1, 1, 1], 2)
    assert verify([1, 1], [0.3, 0.4], 0.7, probs=None) == ([2], 0)


def test_point_mass_targets_take_their_own_tokens():
    target = PointMass(jnp.array([[2, 0, 1]]))
    assert verify([2, 0], [0.9, 0.9], 0.9, target, None) == ([2, 0, 1], 2)
    assert verify([2, 1], [0.9, 0.9], 0.9, target, None) == ([2, 0], 1)
    assert verify([2, 1], [0.9, 0.9], 0.9, target, Q) == ([2, 0], 1)


def test_bonus_mutant_is_told_apart():
    assert verify([0, 1], [0.9, 0.9], 0.3, verifier=DroppedBonus) != verify([0, 1], [0.9, 0.9], 0.3)


def test_trees_are_refused():
    draft = Draft(jnp.array([[0, 1]]), Q, Topology((-1, -1)))
    random = BlockRandom.of(row_keys(0, jnp.arange(1)), jnp.zeros((1,), jnp.int32))
    with pytest.raises(ValueError, match="needs a chain of guesses"):
        TokenVerifier()(random, P, draft)
