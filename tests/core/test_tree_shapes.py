"""The best tree for an acceptance by rank: against every tree, and against Equation 1."""

import functools
import itertools

import numpy as np
import pytest

from specdec.core import theory
from specdec.core.topology import Topology
from specdec.core.tree_shapes import best_parents, expected_tokens, falling

RANKS = (0.6, 0.2, 0.05)


@functools.cache
def dynamic_program(nodes, depth, rank=0):
    """Sequoia's: the most worth of ``nodes`` guesses after one position, from a rank on."""
    if nodes == 0 or depth == 0 or rank == len(RANKS):
        return 0.0
    return max(
        RANKS[rank] * (1 + dynamic_program(below, depth - 1))
        + dynamic_program(nodes - 1 - below, depth, rank + 1)
        for below in range(nodes)
    )


@pytest.mark.parametrize(("nodes", "depth"), itertools.product((1, 2, 3, 5, 8, 13), (1, 2, 3, 5)))
def test_is_the_optimum_of_the_dynamic_program(nodes, depth):
    parents = best_parents(RANKS, nodes, depth)
    best = 1 + max(dynamic_program(n, depth) for n in range(nodes + 1))
    assert expected_tokens(RANKS, parents) == pytest.approx(best)
    topology = Topology(parents)
    assert topology.depth <= depth
    assert topology.siblings <= len(RANKS)
    assert (np.diff(topology.depths()) >= 0).all()


def test_fewer_nodes_where_there_are_no_more():
    assert best_parents(RANKS, 20, 1) == (-1, -1, -1)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.7, 1), (0.8, 5), (1.0, 3), (0.0, 2)])
def test_of_a_chain_it_is_equation_1(alpha, gamma):
    chain = tuple(range(-1, gamma - 1))
    assert expected_tokens((alpha,), chain) == pytest.approx(theory.expected_tokens(alpha, gamma))


def test_a_perfect_draft_wants_a_chain():
    assert best_parents((1.0, 0.0), 4, 8) == (-1, 0, 1, 2)


def test_what_rises_by_chance_is_cut_off():
    assert falling((0.5, 0.1, 0.2)) == (0.5, 0.1, 0.1)
