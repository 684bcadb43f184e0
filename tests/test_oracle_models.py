"""The exact oracle on real networks, with drafts of every kind; and on broken ones."""

import dataclasses

import numpy as np
import oracle_models as broken
import pytest
from oracle_cases import CAUGHT, LOSSLESS
from oracle_models import COINS, ONE, QUARTERS, STEEP, distances, distributions, model_of
from oracle_trees import FIRST, fractions_of, recursive_grid, rolled
from slow import slow

from specdec.core import platforms
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams, chain
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.testing import mutants
from specdec.testing.oracle import Grid
from specdec.testing.toys import dyadic_ngrams
from specdec.verifiers.recursive import RecursiveVerifier

EXACT = Grid(4, 2, 4)  # Where quarters are drawn for a steep target.
# A TPU that has filler in calls of as many rows as the oracle's.
FILLED = dataclasses.replace(platforms.TPU, tile_rows=1 << 20)


def guessed_by(family, name):
    """A drafter, its parameters, and the grid of its decisions."""
    if name == "model":
        model, weights = model_of(family, QUARTERS)
        return ModelDrafter(model, 2), DraftParams(weights, ONE.traced()), EXACT
    if name == "tree":
        model, weights = model_of(family, COINS)
        both = (
            fractions_of(rolled(distribution, sum(distribution), 0))
            for distribution in (STEEP, COINS)
        )
        grid = recursive_grid(*both, 2, 2, False)
        drafter = ModelTreeDrafter(model, Topology.branching((2, 1)))
        return drafter, DraftParams(weights, ONE.traced()), grid
    if name == "n-gram":
        return (
            NgramDrafter(chain(2), 2),
            DraftParams(dyadic_ngrams(2), ONE.traced()),
            Grid(4, 6, 12),
        )
    return CopyingDrafter(chain(2), max_match=2), (), Grid(1, 4, 4)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("t5", "model"), ("t5", "n-gram"), ("t5", "copying"), ("t5", "tree"), ("gpt", "model"),
        ("gpt", "tree"), slow("gpt", "n-gram"), slow("gpt", "copying"), ("bart", "tree"),
        ("m2m_100", "model"), slow("bart", "model"), slow("m2m_100", "tree"),
        ("gemma", "tree"), slow("gemma", "model"), ("t5gemma2", "model"), slow("t5gemma2", "tree"),
    ],
)  # fmt: skip
def test_networks_are_lossless(family, name):
    drafter, params, grid = guessed_by(family, name)
    verifier = RecursiveVerifier() if name == "tree" else None
    assert max(distances(family, drafter, params, grid, verifier=verifier)) < LOSSLESS


@pytest.mark.parametrize(
    ("family", "name"),
    [("t5", "tree"), ("gpt", "model"), slow("t5", "model")],
)
def test_networks_are_lossless_as_tpus_run_them(family, name):
    """With filler in each call, and the filler's entries in the cache."""
    verifier = RecursiveVerifier() if name == "tree" else None
    with platforms.compiling_for(FILLED):
        drafter, params, grid = guessed_by(family, name)
        assert max(distances(family, drafter, params, grid, verifier=verifier)) < LOSSLESS


def test_broken_filler_is_caught():
    with platforms.compiling_for(FILLED):
        off = distances("t5", *guessed_by("t5", "model"), mutant=broken.FillerInFront)
    assert max(off) > CAUGHT


@pytest.mark.parametrize("family", ["t5", "bart", slow("gpt"), slow("m2m_100")])
def test_a_networks_own_probabilities(family):
    """Nothing is replaced: the grid has the probabilities that the two networks have."""
    off = distances(family, *own_probabilities(family), limit=2, numerators=())
    assert max(off) < LOSSLESS


def own_probabilities(family, limit=2):
    """A drafter of one guess, its parameters, and a grid with all that may be decided."""
    model, weights = model_of(family, ())
    proposal, acceptance, final = set(), set(), set()
    both = (distributions(family, (), limit, role) for role in ("target", "draft"))
    for target, draft in zip(*both, strict=True):
        for tokens, p in target.items():
            q = draft[tokens]
            left = np.maximum(p - q, 0)
            proposal |= set(np.cumsum(q))
            acceptance |= set(p / q)
            final |= {*np.cumsum(p), *np.cumsum(left / left.sum())}
    cells = (
        tuple(x for x in each if 1e-9 < x < 1 - 1e-9) for each in (proposal, acceptance, final)
    )
    return ModelDrafter(model, 1), DraftParams(weights, ONE.traced()), Grid(*cells, first=FIRST)


BROKEN_VERIFIERS = [
    mutants.RedrawFromTarget, mutants.WrongResidualRow, mutants.InclusiveAccept, mutants.SharedKeys,
    mutants.KeepGoing, mutants.BonusFromResidual, mutants.DroppedBonus, mutants.SwappedRows,
    mutants.OffByOne,
]  # fmt: skip


def with_broken_verifiers():
    """Each family with all of them; one of each in a plain run."""
    for family, quick in (("t5", mutants.RedrawFromTarget), ("gpt", mutants.SwappedRows)):
        for verifier in BROKEN_VERIFIERS:
            yield (family, verifier) if verifier is quick else slow(family, verifier)


@pytest.mark.parametrize(("family", "verifier"), with_broken_verifiers())
def test_broken_verifiers_are_caught(family, verifier):
    assert max(distances(family, *guessed_by(family, "model"), verifier=verifier())) > CAUGHT


@pytest.mark.parametrize(
    ("family", "mutant"),
    [
        ("t5", broken.KeepsRejected),
        slow("gpt", broken.KeepsRejected),
        slow("t5", broken.LateAfterRejection),
        ("gpt", broken.LateAfterRejection),
        slow("bart", broken.LateAfterRejection),
        ("m2m_100", broken.LateAfterRejection),
        ("gpt", broken.ReadsFiller),
        slow("gemma", broken.KeepsRejected),
        ("t5gemma2", broken.LateAfterRejection),
    ],
)
def test_broken_caches_are_caught(family, mutant):
    assert max(distances(family, *guessed_by(family, "model"), mutant=mutant)) > CAUGHT


@pytest.mark.parametrize(
    ("family", "mutant"),
    [
        ("t5", broken.UnmovedPath),
        slow("gpt", broken.UnmovedPath),
        slow("t5", broken.PositionsBySlot),
        ("gpt", broken.PositionsBySlot),
        ("bart", broken.PositionsBySlot),
        slow("m2m_100", broken.PositionsBySlot),
        ("gpt", broken.SiblingsSeen),
        ("gemma", broken.PositionsBySlot),
        slow("gemma", broken.SiblingsSeen),
        slow("t5gemma2", broken.PositionsBySlot),
    ],
)
def test_broken_trees_are_caught(family, mutant):
    off = distances(
        family, *guessed_by(family, "tree"), verifier=RecursiveVerifier(), mutant=mutant
    )
    assert max(off) > CAUGHT
