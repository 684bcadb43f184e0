"""The exact oracle on drafts that live in the target: heads, a layer, look-ahead embeddings."""

import dataclasses

import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, distances, distances_of
from oracle_heads import DRAFTS, EAGLE, HEADS, LOOK_AHEAD, ToyLayer, chain_of, tree_of
from test_oracle import TerseToy, terse
from test_oracle_trees import DRAFTS as TABLES
from test_oracle_trees import POINTS, STEEP, off

from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.eagle import EagleDrafter
from specdec.types import SamplingConfig
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", ["temperature 1", "greedy"])
def test_a_chain_is_lossless(name, draft):
    assert max(distances(CASES[name], gamma=2, limit=3, drafter=chain_of(*draft))) < LOSSLESS


@pytest.mark.parametrize(
    ("draft", "verifier", "independent", "levels"),
    [
        (EAGLE, RecursiveVerifier(), False, (1, 2)),
        (EAGLE, TraversalVerifier(), True, (1, 2)),
        (HEADS, RecursiveVerifier(), False, (2, 1)),
        (LOOK_AHEAD, RecursiveVerifier(), False, (1, 2)),
    ],
)
def test_a_tree_is_lossless(draft, verifier, independent, levels):
    assert off(verifier, levels, independent=independent, drafter=tree_of(*draft)) < LOSSLESS


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_likeliest_tokens_are_point_masses(draft):
    likely = DraftParams(TABLES["quarters"], SamplingConfig(0.0).traced())
    drafter = tree_of(*draft)(None, Topology.branching((2, 2)))
    verifier = PointMassVerifier()
    assert max(distances_of(drafter, likely, POINTS, STEEP, limit=4, verifier=verifier)) < LOSSLESS


class SomeTokens(ToyLayer):
    """Its logits are of three of the target's four tokens, in an order of its own."""

    def over_vocabulary(self, params, distribution):
        return TerseToy(4).over_vocabulary(params, distribution)


def test_lossless_when_the_draft_has_some_tokens_only():
    drafter = chain_of(EagleDrafter, SomeTokens())
    assert max(terse(SamplingConfig(1.0), drafter)) < LOSSLESS


def other_distributions(drafter, draft):
    """Reports the q of the guesses in another order than that in which it draws them."""

    class OtherLaws(drafter):
        def propose(self, params, state, random, rules):
            draft, state = super().propose(params, state, random, rules)
            return dataclasses.replace(draft, probs=draft.probs[:, ::-1]), state

    return chain_of(OtherLaws, draft)


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_q_of_another_guess_is_caught(draft):
    broken = other_distributions(*draft)
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, drafter=broken)) > CAUGHT
