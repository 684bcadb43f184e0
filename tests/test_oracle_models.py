"""The exact oracle on real networks, with drafts of every kind; and on broken ones."""

import dataclasses

import numpy as np
import oracle_models as broken
import pytest
from oracle_cases import CAUGHT, LOSSLESS
from oracle_models import COINS, ONE, QUARTERS, STEEP, distances, distributions, model_of
from oracle_trees import FIRST, fractions_of, recursive_grid, rolled

from specdec.core import platforms
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.testing.oracle import Grid
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
    return CopyingDrafter(Topology.chain(2), max_match=2), (), Grid(1, 4, 4)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("t5", "tree"), ("t5", "copying"), ("gpt", "model"), ("bart", "tree"),
        ("m2m_100", "model"), ("gemma", "tree"), ("t5gemma2", "model"),
    ],
)  # fmt: skip
def test_networks_are_lossless(family, name):
    drafter, params, grid = guessed_by(family, name)
    verifier = RecursiveVerifier() if name == "tree" else None
    assert max(distances(family, drafter, params, grid, verifier=verifier)) < LOSSLESS


def test_a_network_is_lossless_as_tpus_run_it():
    """With filler in each call, and the filler's entries in the cache."""
    with platforms.compiling_for(FILLED):
        off = distances("t5", *guessed_by("t5", "tree"), verifier=RecursiveVerifier())
    assert max(off) < LOSSLESS


def test_broken_filler_is_caught():
    with platforms.compiling_for(FILLED):
        off = distances("t5", *guessed_by("t5", "model"), mutant=broken.FillerInFront)
    assert max(off) > CAUGHT


def test_a_networks_own_probabilities():
    """Nothing is replaced: the grid has the probabilities that the two networks have."""
    off = distances("t5", *own_probabilities("t5"), limit=2, numerators=())
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


@pytest.mark.parametrize(
    ("family", "mutant"),
    [
        ("t5", broken.KeepsRejected),
        ("m2m_100", broken.LateAfterRejection),
        ("gpt", broken.ReadsFiller),
        ("t5gemma2", broken.LateAfterRejection),
    ],
)
def test_broken_caches_are_caught(family, mutant):
    assert max(distances(family, *guessed_by(family, "model"), mutant=mutant)) > CAUGHT


@pytest.mark.parametrize(
    ("family", "mutant"),
    [
        ("t5", broken.UnmovedPath),
        ("bart", broken.PositionsBySlot),
        ("gpt", broken.SiblingsSeen),
        ("gemma", broken.PositionsBySlot),
    ],
)
def test_broken_trees_are_caught(family, mutant):
    off = distances(
        family, *guessed_by(family, "tree"), verifier=RecursiveVerifier(), mutant=mutant
    )
    assert max(off) > CAUGHT
