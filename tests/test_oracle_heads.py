"""The exact oracle on drafts that live in the target: heads, a layer, look-ahead embeddings."""

import dataclasses
import itertools

import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, distances, distances_of
from oracle_heads import (
    ToyHeads,
    ToyLayer,
    ToyLookAhead,
    eagle_chain,
    eagle_tree,
    heads_chain,
    heads_tree,
    look_ahead_chain,
    look_ahead_tree,
)
from test_oracle import TerseToy, terse
from test_oracle_trees import DRAFTS, POINTS, STEEP, off

from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.eagle import EagleDrafter
from specdec.drafters.heads import OffsetHeadsDrafter
from specdec.drafters.look_ahead import LookAheadDrafter
from specdec.types import SamplingConfig
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier

CHAINS = [heads_chain, eagle_chain, look_ahead_chain]
TREES = [heads_tree, eagle_tree, look_ahead_tree]


SOME = ("temperature 1", "greedy", "top-k")


def chains():
    """The layer in all ways of sampling; heads and look-ahead, which draw alike, in some."""
    for drafter, name in itertools.product(CHAINS, CASES):
        if drafter is eagle_chain or name in SOME:
            yield drafter, name


@pytest.mark.parametrize(("drafter", "name"), chains())
def test_a_chain_is_lossless(name, drafter):
    assert max(distances(CASES[name], gamma=2, limit=3, drafter=drafter)) < LOSSLESS


VERIFIERS = {"recursive": RecursiveVerifier(), "traversal": TraversalVerifier()}


@pytest.mark.parametrize(
    ("drafter", "name", "independent", "levels"),
    [
        (eagle_tree, "recursive", False, (1, 2)), (eagle_tree, "recursive", True, (2, 1)),
        (eagle_tree, "traversal", False, (2, 1)), (eagle_tree, "traversal", True, (1, 2)),
        (heads_tree, "recursive", False, (2, 1)), (heads_tree, "traversal", True, (1, 2)),
        (look_ahead_tree, "recursive", False, (1, 2)),
        *(pytest.param(eagle_tree, *rest, marks=pytest.mark.slow)
          for rest in [("recursive", False, (2, 1)), ("recursive", True, (1, 2)),
                       ("traversal", False, (1, 2)), ("traversal", True, (2, 1))]),
    ],
)  # fmt: skip
def test_a_tree_is_lossless(drafter, name, independent, levels):
    verifier = VERIFIERS[name]
    assert off(verifier, levels, independent=independent, drafter=drafter) < LOSSLESS


@pytest.mark.parametrize("drafter", TREES)
def test_the_likeliest_tokens_are_point_masses(drafter):
    likely = DraftParams(DRAFTS["quarters"], SamplingConfig(0.0).traced())
    drafter = drafter(None, Topology.branching((2, 2)))
    verifier = PointMassVerifier()
    assert max(distances_of(drafter, likely, POINTS, STEEP, limit=4, verifier=verifier)) < LOSSLESS


def some_tokens(drafter, draft):
    """A draft whose logits are of three of the target's four tokens, in an order of its own."""

    class Some(type(draft)):
        def over_vocabulary(self, params, distribution):
            return TerseToy(4).over_vocabulary(params, distribution)

    return lambda model, gamma: drafter(Some(), Topology.chain(gamma))


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(1.0), pytest.param(SamplingConfig(0.0), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("drafter", "draft"),
    [
        (EagleDrafter, ToyLayer()),
        pytest.param(OffsetHeadsDrafter, ToyHeads(), marks=pytest.mark.slow),
        pytest.param(LookAheadDrafter, ToyLookAhead(), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_lossless_when_the_draft_has_some_tokens_only(sampling, drafter, draft):
    assert max(terse(sampling, some_tokens(drafter, draft))) < LOSSLESS


def other_distributions(drafter, draft):
    """Reports the q of the guesses in another order than that in which it draws them."""

    class OtherLaws(drafter):
        def propose(self, params, state, random, rules):
            draft, state = super().propose(params, state, random, rules)
            return dataclasses.replace(draft, probs=draft.probs[:, ::-1]), state

    return lambda model, gamma: OtherLaws(draft, Topology.chain(gamma))


@pytest.mark.parametrize(
    "broken",
    [
        other_distributions(OffsetHeadsDrafter, ToyHeads()),
        other_distributions(EagleDrafter, ToyLayer()),
        other_distributions(LookAheadDrafter, ToyLookAhead()),
    ],
)
def test_the_q_of_another_guess_is_caught(broken):
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, drafter=broken)) > CAUGHT
