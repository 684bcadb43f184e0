"""Trees whose shape is traced are the trees whose shape is static."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.topology import Topology, TracedTopology

ROWS = 20


def random_trees(size, seed):
    """From chains to trees of one level, one a row."""
    rng = np.random.default_rng(seed)
    rows = [[rng.integers(max(-1, i - 1 - row), i) for i in range(size)] for row in range(ROWS)]
    return [Topology(tuple(map(int, row))) for row in rows]


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_depths_and_ancestors_of_random_trees(size, rooted):
    trees = random_trees(size, size)
    traced = TracedTopology(
        jnp.array([tree.parents for tree in trees]),
        max(tree.depth for tree in trees),
        max(tree.siblings for tree in trees),
    )
    if rooted:
        traced, trees = traced.rooted(), [tree.rooted() for tree in trees]
    assert traced.size == size + rooted
    depths, ancestors = jax.jit(lambda t: (t.depths(), t.ancestors()))(traced)
    np.testing.assert_array_equal(depths, [tree.depths() for tree in trees])
    np.testing.assert_array_equal(ancestors, [tree.ancestors() for tree in trees])
    assert traced.depth == max(tree.depth for tree in trees)


def test_a_chain_is_told_from_a_tree():
    chain = Topology.chain(4)
    assert (chain.is_chain, chain.depth, chain.size) == (True, 4, 4)
    assert chain.rooted() == Topology.chain(5)
    tree = Topology((-1, 0, 0, 2))
    assert (tree.is_chain, tree.depth, tree.size) == (False, 3, 4)
    assert tree.rooted() == Topology((-1, 0, 1, 1, 3))
    assert Topology.chain(0).depth == 0
    with pytest.raises(ValueError, match=r"parents\[1\] is 1; a parent must be in \[-1, 1\)"):
        Topology((-1, 1))
