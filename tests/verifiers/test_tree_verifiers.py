"""Verifiers of trees on single blocks: what they are on chains, and what they expect to keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.pytrees import pytree
from specdec.core.topology import Topology, TracedTopology
from specdec.types import Draft, Purpose
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.tree import first_accepted
from specdec.verifiers.typical import TypicalVerifier

V = 5


judged = jax.jit(lambda verifier, *given: verifier(*given), static_argnums=0)


@pytree
class Numbers:
    """Given numbers for accepting; a fixed one for all else."""

    acceptance: jax.Array

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


@pytest.mark.parametrize("seed", range(2))
def test_traversal_of_a_chain_is_block_verification(seed):
    """How often each number of guesses is kept, over a grid of random numbers."""
    target, draft = block(seed, Topology.chain(3), GRID)
    one = judged(TraversalVerifier(), Numbers(MIDDLES[:, None]), target, draft)
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
@pytest.mark.parametrize("seed", range(2))
def test_on_a_chain_the_others_are_token_verification(seed, verifier):
    target, draft = block(seed, Topology.chain(3), GRID)
    numbers = Numbers(jax.random.uniform(jax.random.key(seed), (GRID, 3)))
    one, other = (judged(each, numbers, target, draft) for each in (verifier, TokenVerifier()))
    for name in ("num_accepted", "num_emitted", "examined"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    indices = np.arange(4) < np.asarray(one.num_emitted)[:, None]
    np.testing.assert_array_equal(one.tokens * indices, other.tokens * indices)
    np.testing.assert_array_equal(one.path * indices, other.path * indices)


def test_traversal_expects_to_keep_no_less_than_recursive():
    """On average over guesses: 20 trees, 200 draws each; three standard errors."""
    topology, rows = Topology.branching((2, 2)), 200
    each = [block(seed, topology, rows) for seed in range(20)]
    target = jnp.concatenate([p for p, _ in each])
    q = jnp.concatenate([draft.probs for _, draft in each])
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.random.categorical(keys[0], jnp.log(q))
    draft = Draft(drawn, q, topology, None, independent=True)
    numbers = Numbers(jax.random.uniform(keys[1], (len(q), topology.depth)))
    most, least = (
        np.asarray(judged(verifier, numbers, target, draft).num_accepted)
        for verifier in (TraversalVerifier(), RecursiveVerifier())
    )
    differences = (most - least).reshape(20, rows).mean(axis=1)
    assert np.mean(differences) > -3 * np.std(differences) / np.sqrt(len(differences))


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
        one, other = (judged(verifier, numbers, target, each) for each in (draft, same))
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
    found = judged(verifier, Numbers(jnp.full((1, 2), 0.0)), target, nothing)
    assert int(found.num_emitted[0]) == 1
    assert int(found.examined[0]) == 0
    distribution = np.cumsum(target[0, 0])
    assert int(found.tokens[0, 0]) == int(np.searchsorted(distribution, 0.5, side="right"))


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
