"""The exact oracle on rules for logits: each rule, each way of verifying, and mutants."""

import itertools

import pytest
from oracle_cases import CAUGHT, LOSSLESS
from oracle_rules import RULES, TOY, off

from specdec.core.topology import Topology
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.testing import rule_mutants as mutants
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier

CHAIN, PAIR, FORK = ModelDrafter(TOY, 2), Topology.branching((2,)), Topology.branching((1, 2))
WAYS = {
    "stopped early": (ModelDrafter(TOY, 2, stop_below=0.6), TokenVerifier()),
    "siblings without replacement": (ModelTreeDrafter(TOY, PAIR), RecursiveVerifier()),
    "independent siblings": (ModelTreeDrafter(TOY, PAIR, True), KSeqVerifier()),
    "tree": (ModelTreeDrafter(TOY, FORK, True), RecursiveVerifier()),
    "traversal": (ModelTreeDrafter(TOY, FORK, True), TraversalVerifier()),
    "best-first": (BestFirstDrafter(TOY, 3, 2, 2), PointMassVerifier()),
    "chain": (CHAIN, TokenVerifier()),
    "block": (CHAIN, BlockVerifier()),
}
# Penalties have many distributions: where the draft follows them, too, trees would have too many
# cells, and block verification has in any case; in this order it is given other rules.
PENALTIES = ("repetition", "presence", "frequency", "two")


@pytest.mark.parametrize(("name", "way"), zip(RULES, itertools.cycle(WAYS), strict=False))
def test_each_rule_is_lossless(name, way):
    """Each is verified in one way, in turn."""
    follows = name not in PENALTIES or (name, way) == ("presence", "siblings without replacement")
    assert off(name, *WAYS[way], follows=follows) < LOSSLESS


@pytest.mark.parametrize("name", ["repetition", "no bigram twice", "sequences"])
def test_drafts_that_do_not_follow(name):
    assert off(name, CHAIN, TokenVerifier(), follows=False) < LOSSLESS


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (mutants.StateOfTheBlock, "no bigram twice"),
        (mutants.RejectedGuessesCount, "no bigram twice"),
        (mutants.NewestTokenMissing, "no bigram twice"),
        (mutants.BonusWithoutRules, "automaton"),
    ],
)
def test_mutants_are_caught(engine, name):
    assert off(name, CHAIN, TokenVerifier(), follows=False, engine=engine) > CAUGHT


def test_a_siblings_history_is_caught():
    drafter = ModelTreeDrafter(TOY, PAIR, True)
    wrong = mutants.HistoryOfTheSibling
    assert off("no bigram twice", drafter, RecursiveVerifier(), engine=wrong) > CAUGHT


def test_a_neighbours_state_is_caught():
    wrong = mutants.NeighboursState
    assert off("no bigram twice", CHAIN, TokenVerifier(), engine=wrong) > CAUGHT
