"""The exact oracle on trees: every verifier, tree and drafter of them, and broken variants."""

import dataclasses

import jax.numpy as jnp
import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, distances_of
from oracle_trees import FIRST, fractions_of, kseq_grid, recursive_grid, rolled, traversal_grid

from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.best_first import BestFirstDrafter
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.merged import MergedDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.random import RandomDrafter
from specdec.models.toy import ToyModel
from specdec.testing import tree_mutants as mutants
from specdec.testing.oracle import Grid
from specdec.testing.toys import dyadic_ngrams
from specdec.types import SamplingConfig
from specdec.verifiers.kseq import KSeqVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier
from specdec.verifiers.typical import TypicalVerifier

TOY = ToyModel(3)
SAMPLED, GREEDY = CASES["temperature 1"], CASES["greedy"]
ONE = SamplingConfig(1.0).traced()
# Targets of few distributions, for thresholds multiply.
STEEP, MIXED = rolled((3, 1, 0), 4, 0), rolled((3, 2, 1), 6, 0)
DRAFTS = {"coins": rolled((1, 1, 0), 2, 1), "quarters": rolled((2, 1, 1), 4, 2)}
PROPOSALS = {"coins": 2, "quarters": 12}
RECURSIVE, TRAVERSAL, KSEQ = RecursiveVerifier(), TraversalVerifier(), KSeqVerifier()


def grid_of(verifier, tree, draft, independent, target=STEEP):
    """The cells in which no decision changes."""
    targets, drafts = fractions_of(target), fractions_of(DRAFTS[draft])
    if isinstance(verifier, KSeqVerifier):
        return kseq_grid(targets, drafts, tree.siblings, PROPOSALS[draft])
    if isinstance(verifier, TraversalVerifier):
        return traversal_grid(targets, drafts, tree, PROPOSALS[draft], independent)
    return recursive_grid(targets, drafts, tree.siblings, PROPOSALS[draft], independent)


def off(
    verifier, levels, draft="coins", independent=False, limit=3, drafter=ModelTreeDrafter,
    model=ToyModel, tree=None, target=STEEP, acceptance=None,
):  # fmt: skip
    """How far the loop's distribution is from the target's at worst; the draft is a tree."""
    tree = tree or Topology.branching(levels)
    grid = grid_of(verifier, tree, draft, independent, target)
    if acceptance:
        grid = dataclasses.replace(grid, acceptance=acceptance)
    case = dataclasses.replace(SAMPLED, grid=grid)
    params = DraftParams(DRAFTS[draft], ONE)
    built = drafter(TOY, tree, independent)
    return max(
        distances_of(built, params, case, target, limit=limit, verifier=verifier, model=model)
    )


UNEVEN = Topology((-1, -1, 0, 0, 2))  # A leaf beside a branch of three levels.


@pytest.mark.parametrize(
    ("verifier", "independent", "levels", "draft", "limit"),
    [
        (RECURSIVE, False, (3,), "quarters", 2), (RECURSIVE, True, (1, 2), "coins", 3),
        (TRAVERSAL, False, (1, 2), "coins", 3), (TRAVERSAL, True, (3,), "quarters", 2),
        (KSEQ, True, (2, 1), "coins", 3),
    ],
)  # fmt: skip
def test_lossless(verifier, independent, levels, draft, limit):
    assert off(verifier, levels, draft, independent, limit) < LOSSLESS


def test_lossless_with_another_target():
    assert off(RECURSIVE, (2,), "quarters", target=MIXED) < LOSSLESS


def test_lossless_with_leaves_at_any_level():
    assert off(RECURSIVE, None, tree=UNEVEN) < LOSSLESS


def test_lossless_where_the_tree_is_deeper_than_the_room_left():
    assert off(RECURSIVE, (1, 1, 2), limit=2) < LOSSLESS


def test_lossless_with_more_siblings_than_the_draft_can_draw():
    """Coins have two sides: of the third sibling q is 0 everywhere."""
    assert off(RECURSIVE, (3,)) < LOSSLESS


POINTS = dataclasses.replace(SAMPLED, grid=Grid(1, 1, 4))


def point_masses(name):
    """A drafter whose guesses are no draws, and its parameters."""
    zero = SamplingConfig(0.0).traced()
    likely = DraftParams(DRAFTS["quarters"], zero)
    made = {
        "model": (ModelTreeDrafter(TOY, Topology.branching((2, 2))), likely),
        "best-first": (BestFirstDrafter(TOY, 5, 3, 2), likely),
        "copying": (CopyingDrafter(Topology.branching((2, 1)), 2), ()),
        "best-first and copying": (
            MergedDrafter(
                (
                    BestFirstDrafter(TOY, 3, 2, 2, catch_up=3),
                    CopyingDrafter(Topology.branching((2, 1)), 2, catch_up=3),
                ),
                3,
            ),
            (likely, ()),
        ),
    }
    return made[name]


@pytest.mark.parametrize("name", ["model", "best-first", "copying", "best-first and copying"])
def test_point_masses_are_lossless(name):
    drafter, params = point_masses(name)
    verifier = PointMassVerifier()
    found = distances_of(drafter, params, POINTS, STEEP, limit=4, verifier=verifier)
    assert max(found) < LOSSLESS


def test_another_verifier_of_point_masses():
    found = distances_of(*point_masses("best-first"), POINTS, STEEP, limit=3, verifier=TRAVERSAL)
    assert max(found) < LOSSLESS


def two_drafts(drafter=MergedDrafter, levels=(1,), draft="coins", target=STEEP):
    """Two models, of which the second one's guess is judged on what the first one's leaves."""
    tree = Topology.branching(levels)
    both = tuple(ModelTreeDrafter(TOY, tree, catch_up=len(levels) + 1) for _ in range(2))
    other = {"coins": rolled((1, 1, 0), 2, 3), "quarters": rolled((2, 1, 1), 4, 4)}
    params = DraftParams(DRAFTS[draft], ONE), DraftParams(other[draft], ONE)
    grid = recursive_grid(
        fractions_of(target), fractions_of(DRAFTS[draft]), 2, PROPOSALS[draft], True, several=True
    )
    return drafter(both, 3), params, dataclasses.replace(SAMPLED, grid=grid), target


def test_two_models_at_once_are_lossless():
    found = distances_of(*two_drafts(levels=(1, 1)), limit=3, verifier=RECURSIVE)
    assert max(found) < LOSSLESS


def test_a_model_and_copying_at_once_are_lossless():
    """Guesses that are drawn beside guesses that are not."""
    tree = Topology.branching((1,))
    both = (
        ModelTreeDrafter(TOY, tree, catch_up=2), CopyingDrafter(tree, max_match=2, catch_up=2),
    )  # fmt: skip
    case = dataclasses.replace(SAMPLED, grid=Grid(2, 24, 24, first=FIRST))
    params = (DraftParams(DRAFTS["coins"], ONE), ())
    found = distances_of(MergedDrafter(both, 3), params, case, STEEP, limit=3, verifier=RECURSIVE)
    assert max(found) < LOSSLESS


@pytest.mark.parametrize(
    ("drafter", "params", "grid"),
    [
        (RandomDrafter(Topology.branching((2,)), 3), (), Grid(3, 16, 16, first=FIRST)),
        (
            NgramDrafter(Topology.branching((2, 1)), 1), DraftParams(dyadic_ngrams(1), ONE),
            Grid(2, 16, 16, first=FIRST),
        ),
    ],
)  # fmt: skip
def test_drafts_without_a_model_are_lossless(drafter, params, grid):
    case = dataclasses.replace(SAMPLED, grid=grid)
    assert max(distances_of(drafter, params, case, STEEP, limit=3, verifier=RECURSIVE)) < LOSSLESS


@pytest.mark.parametrize("verifier", [RECURSIVE, TRAVERSAL, KSEQ, TypicalVerifier()])
def test_greedy_trees_are_the_targets_own_tokens(verifier):
    target = jnp.asarray(GREEDY.table(GREEDY.tables[0]))
    drafter, params = point_masses("model")
    assert max(distances_of(drafter, params, GREEDY, target, limit=5, verifier=verifier)) == 0


def test_a_greedy_target_with_drawn_guesses():
    target = jnp.asarray(GREEDY.table(GREEDY.tables[0]))
    drafter = ModelTreeDrafter(TOY, Topology.branching((2, 1)))
    case = dataclasses.replace(GREEDY, grid=Grid(2, 1, 1))
    params = DraftParams(DRAFTS["coins"], ONE)
    assert max(distances_of(drafter, params, case, target, limit=4, verifier=RECURSIVE)) == 0


def own_copy(model, tree, independent):
    """A tree of the target's own copy, which starts from what the target made of the inputs."""
    return ModelTreeDrafter(dataclasses.replace(model, of_target=True), tree, independent)


def test_trees_of_the_targets_own_copy_are_lossless():
    """Drawn; and greedily, of weights really rounded."""
    assert off(RECURSIVE, (2, 1), drafter=own_copy) < LOSSLESS
    full = jnp.asarray(GREEDY.table(GREEDY.tables[0]))
    model, few = TOY.quantized(full, 8, 16, of_target=True)
    drafter = ModelTreeDrafter(model, Topology.branching((2, 1)))
    params = DraftParams(few, SamplingConfig(0.0).traced())
    assert max(distances_of(drafter, params, GREEDY, full, limit=4, verifier=RECURSIVE)) == 0


def test_typical_acceptance_is_lossy():
    """How far it is from the target depends on the models; here far."""
    verifier = TypicalVerifier()
    assert not verifier.lossless
    drafter, params = point_masses("model")
    found = distances_of(drafter, params, POINTS, STEEP, limit=3, verifier=verifier)
    assert 0.05 < max(found) < 1


BROKEN = [
    (mutants.ResidualOfFirst(), (2,), "quarters", True),
    (mutants.BestFirstOrder(), (2,), "quarters", False),
    (mutants.AnotherParentsDistribution(), (2, 1), "coins", False),
    (mutants.SharedNumbers(), (1, 2), "coins", False),
    (mutants.WeightsFromTheRoot(), (1, 2), "coins", False),
    (mutants.TraversalOfTokens(), (1, 2), "coins", False),
    (mutants.WithoutRho(), (2,), "quarters", True),
    (mutants.AsIfIndependent(), (2,), "quarters", False),
]


@pytest.mark.parametrize(("verifier", "levels", "draft", "independent"), BROKEN)
def test_broken_verifiers_are_caught(verifier, levels, draft, independent):
    assert off(verifier, levels, draft, independent, limit=2, target=MIXED) > CAUGHT


def test_siblings_that_are_all_judged_on_p_are_caught():
    """By finer cells: in those of the true rule, rounding decided whether it was seen."""
    broken = mutants.SameForAllSiblings()
    assert off(broken, (3,), "quarters", limit=2, target=MIXED, acceptance=12) > CAUGHT


@pytest.mark.parametrize("drafter", [mutants.NotRenormalised, mutants.WithReplacementReported])
def test_a_wrong_q_of_siblings_is_caught(drafter):
    assert off(RECURSIVE, (2,), "quarters", drafter=drafter, limit=2, target=MIXED) > CAUGHT


@pytest.mark.parametrize("model", [mutants.UnmovedPath, mutants.PositionsBySlot, mutants.StalePath])
def test_broken_caches_are_caught(model):
    assert off(RECURSIVE, (2, 2), model=model, limit=4) > CAUGHT


def test_repeated_point_masses_that_are_judged_twice_are_caught():
    drafter, params = point_masses("copying")
    case = dataclasses.replace(SAMPLED, grid=Grid(1, 24, 24, first=FIRST))
    found = distances_of(drafter, params, case, STEEP, limit=3, verifier=mutants.RepeatedSiblings())
    assert max(found) > CAUGHT


def test_drafts_that_share_their_numbers_are_caught():
    broken = two_drafts(mutants.SharedByDrafts, draft="quarters", target=MIXED)
    found = distances_of(*broken, limit=2, verifier=RECURSIVE)
    assert max(found) > CAUGHT


def test_a_broken_cache_of_traced_trees_is_caught():
    found = distances_of(
        *point_masses("best-first"), POINTS, STEEP, limit=4, verifier=RECURSIVE,
        model=mutants.UnmovedPath,
    )  # fmt: skip
    assert max(found) > CAUGHT
