"""Verifiers of trees on single blocks: what they are on chains, and what they expect to keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.topology import Topology, TracedTopology
from specdec.studies.measure.forced import ForcedAcceptance
from specdec.types import Draft, PointMass, Purpose
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.tree import first_accepted
from specdec.verifiers.typical import TypicalVerifier

V = 5


class Numbers:
    """Given numbers for accepting; a fixed one for all else."""

    def __init__(self, acceptance):
        self.acceptance = acceptance

    def uniforms(self, purpose, count):
        if purpose == Purpose.ACCEPTANCE:
            return self.acceptance[:, :count]
        return jnp.full((len(self.acceptance), count), 0.5)


def block(seed, topology, rows=1):
    """Random p and q of a tree, and guesses drawn from q, independently of each other."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(V), (1, topology.size + 1))
    first = {}
    each = [first.setdefault(parent, i) for i, parent in enumerate(topology.parents)]
    q = generator.dirichlet(np.ones(V), (1, topology.size))[:, each]
    tokens = np.array([[generator.choice(V, p=row) for row in q[0]]])

    def repeat(array):
        return jnp.repeat(jnp.asarray(array), rows, axis=0)

    draft = Draft(repeat(tokens), repeat(q).astype(jnp.float32), topology, None, independent=True)
    return repeat(p).astype(jnp.float32), draft


GRID = 2000
MIDDLES = (jnp.arange(GRID) + 0.5) / GRID


@pytest.mark.parametrize("seed", range(6))
def test_traversal_of_a_chain_is_block_verification(seed):
    """How often each number of guesses is kept, over a grid of random numbers."""
    target, draft = block(seed, Topology.chain(3), GRID)
    one = TraversalVerifier()(Numbers(MIDDLES[:, None]), target, draft)
    kept = np.bincount(one.num_accepted, minlength=4) / GRID
    # Block verification keeps prefix i if its own test passes and no longer one's does.
    verifier = BlockVerifier()
    reach = verifier._reach(target[:1], jax.tree.map(lambda a: a[:1], draft))
    mass = verifier._residuals(target[:1], jax.tree.map(lambda a: a[:1], draft), reach).sum(-1)
    accept = np.array(verifier._accept_probs(reach, mass, (jnp.arange(4) == 3)[None]))[0]
    accept[0] = 1.0
    longer = np.append(np.cumprod(1 - accept[::-1])[::-1][1:], 1.0)
    np.testing.assert_allclose(kept, accept * longer, atol=2 / GRID)


@pytest.mark.parametrize("verifier", [RecursiveVerifier(), KSeqVerifier()])
@pytest.mark.parametrize("seed", range(4))
def test_on_a_chain_the_others_are_token_verification(seed, verifier):
    target, draft = block(seed, Topology.chain(3), GRID)
    numbers = Numbers(jax.random.uniform(jax.random.key(seed), (GRID, 3)))
    one, other = verifier(numbers, target, draft), TokenVerifier()(numbers, target, draft)
    for name in ("num_accepted", "num_emitted", "examined"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    indices = np.arange(4) < np.asarray(one.num_emitted)[:, None]
    np.testing.assert_array_equal(one.tokens * indices, other.tokens * indices)
    np.testing.assert_array_equal(one.path * indices, other.path * indices)


@pytest.mark.parametrize(
    "levels", [(2, 2), *(pytest.param(s, marks=pytest.mark.slow) for s in ((3, 1, 1), (1, 3)))]
)
def test_traversal_expects_to_keep_no_less_than_recursive(levels):
    """On average over guesses: 20 trees, 200 draws each; three standard errors."""
    differences = []
    for seed in range(20):
        target, draft = block(seed, Topology.branching(levels), 200)
        keys = jax.random.split(jax.random.key(seed), 2)
        drawn = jax.random.categorical(keys[0], jnp.log(draft.probs))
        draft = Draft(drawn, draft.probs, draft.topology, None, independent=True)
        numbers = Numbers(jax.random.uniform(keys[1], (200, len(levels))))
        kept = [
            float(jnp.mean(verifier(numbers, target, draft).num_accepted))
            for verifier in (TraversalVerifier(), RecursiveVerifier())
        ]
        differences.append(kept[0] - kept[1])
    error = np.std(differences) / np.sqrt(len(differences))
    assert np.mean(differences) > -3 * error


def test_one_number_decides_between_siblings():
    survival = jnp.array([[1.0, 0.5, 0.5, 0.0]] * 4)
    at, found = first_accepted(survival, jnp.array([0.0, 0.49, 0.51, 0.999]))
    np.testing.assert_array_equal(at, [1, 1, 3, 3])
    assert found.all()
    # What is never accepted is not, whatever the number; also 0.
    assert not first_accepted(jnp.ones((1, 2)), jnp.zeros(1))[1].any()


def test_a_traced_tree_is_the_static_one():
    topology = Topology.branching((2, 1))
    target, draft = block(3, topology, 50)
    traced = TracedTopology(jnp.array([topology.parents] * 50), depth=2, siblings=2)
    same = Draft(draft.tokens, draft.probs, traced, None, independent=True)
    numbers = Numbers(jax.random.uniform(jax.random.key(0), (50, 2)))
    for verifier in (RecursiveVerifier(), TraversalVerifier(), KSeqVerifier(), TypicalVerifier()):
        one, other = (verifier(numbers, target, each) for each in (draft, same))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=str(verifier))


@pytest.mark.parametrize(
    "verifier",
    [RecursiveVerifier(), TraversalVerifier(), KSeqVerifier(), PointMassVerifier()],
)
def test_filler_is_no_guess(verifier):
    """Of a row without guesses one token is drawn from p."""
    topology = Topology.branching((2, 1))
    target, draft = block(1, topology, 1)
    points = isinstance(verifier, PointMassVerifier)
    nothing = Draft(
        draft.tokens, None if points else draft.probs, topology, jnp.array([0]), not points
    )
    found = verifier(Numbers(jnp.full((1, 2), 0.0)), target, nothing)
    assert int(found.num_emitted[0]) == 1
    assert int(found.examined[0]) == 0
    distribution = np.cumsum(target[0, 0])
    assert int(found.tokens[0, 0]) == int(np.searchsorted(distribution, 0.5, side="right"))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("greedy", [False, True])
def test_forced_acceptance_of_a_tree(alpha, greedy):
    target, draft = block(2, Topology.branching((2, 2, 1)), GRID)
    if greedy:
        target = PointMass(jnp.argmax(target, axis=-1))
    numbers = Numbers(jax.random.uniform(jax.random.key(0), (GRID, 3)))
    found = ForcedAcceptance(alpha)(numbers, target, draft)
    expected = sum(alpha**i for i in (1, 2, 3))
    assert float(jnp.mean(found.num_accepted)) == pytest.approx(expected, abs=0.08)


def test_a_draw_is_no_point_mass():
    target, draft = block(0, Topology.branching((2,)))
    with pytest.raises(ValueError, match="no random draws"):
        PointMassVerifier()(Numbers(jnp.zeros((1, 1))), target, draft)


def test_kseq_needs_independent_siblings():
    target, draft = block(0, Topology.branching((2,)))
    for other in (
        Draft(draft.tokens, draft.probs, draft.topology),
        Draft(draft.tokens, None, draft.topology),
    ):
        with pytest.raises(ValueError, match="independent=True"):
            KSeqVerifier()(Numbers(jnp.zeros((1, 1))), target, other)


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"delta": 1.5}])
def test_typical_thresholds(settings):
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        TypicalVerifier(**settings)
