"""The exact oracle on heads: every way of sampling, chains and trees."""

import dataclasses

import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, distances, distances_of
from oracle_heads import ToyHeads, heads_chain, heads_tree
from test_oracle_trees import DRAFTS, POINTS, STEEP, off

from specdec.drafters.base import Sampled
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.topology import Topology
from specdec.types import SamplingConfig
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier


@pytest.mark.parametrize("name", CASES)
def test_a_chain_is_lossless(name):
    assert max(distances(CASES[name], gamma=2, limit=3, drafter=heads_chain)) < LOSSLESS


@pytest.mark.parametrize("verifier", [RecursiveVerifier(), TraversalVerifier()])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("levels", [(2, 1), (1, 2)])
def test_a_tree_is_lossless(verifier, independent, levels):
    assert off(verifier, levels, independent=independent, drafter=heads_tree) < LOSSLESS


def test_the_likeliest_tokens_of_each_head_are_point_masses():
    likely = Sampled(DRAFTS["quarters"], SamplingConfig(0.0).traced())
    drafter = heads_tree(None, Topology.branching((2, 2)))
    verifier = PointMassVerifier()
    assert max(distances_of(drafter, likely, POINTS, STEEP, limit=4, verifier=verifier)) < LOSSLESS


class OtherLaws(OffsetHeadsDrafter):
    """Reports the q of the heads in another order than that in which it draws."""

    def propose(self, params, state, random):
        draft, state = super().propose(params, state, random)
        return dataclasses.replace(draft, probs=draft.probs[:, ::-1]), state


def test_a_head_that_is_shifted_by_one_is_caught():
    def shifted(model, gamma):
        return OtherLaws(ToyHeads(), Topology.chain(gamma))

    found = distances(CASES["temperature 1"], gamma=2, limit=3, drafter=shifted)
    assert max(found) > CAUGHT
