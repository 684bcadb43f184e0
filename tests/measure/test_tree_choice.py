"""A tree, a chain or plain decoding by measurement: the arithmetic, the memory, generate."""

import dataclasses

import numpy as np
import pytest
from tiny import TINY, random_t5_params

from specdec.api import Pair
from specdec.checkpoints.loading import load_packed
from specdec.core.stats import RunStats
from specdec.core.tree_shapes import expected_tokens
from specdec.drafters.copying import Copying
from specdec.drafters.model import model_draft
from specdec.drafters.tree import Tree
from specdec.measure import tree_choice as tuning
from specdec.measure.tree_choice import Candidate, TreeChoice, acceptance_by_rank, shortlist
from specdec.types import SamplingConfig
from specdec.verifiers.forced import ForcedAcceptance

RANKS = (0.6, 0.15, 0.05)
FLAT = {1: 1.0, 3: 1.0, 7: 1.0, 15: 1.05, 31: 1.1}
STEEP = {1: 1.2, 3: 1.7, 7: 3.0, 15: 5.8, 31: 10.0}
CHEAP = {1: 0.02, 8: 0.03}


def test_where_a_wide_call_costs_nothing_large_trees_come_first():
    best = max(shortlist(RANKS, FLAT, CHEAP, 63), key=lambda each: each.predicted)
    assert best.tree is not None
    assert best.tree.size >= 16


def test_where_it_costs_much_short_chains_do():
    best = max(shortlist(RANKS, STEEP, CHEAP, 63), key=lambda each: each.predicted)
    assert best.gamma in (1, 2, 3)
    assert best.predicted == pytest.approx(
        expected_tokens(RANKS, range(-1, best.gamma - 1))
        / (np.interp(best.gamma, list(STEEP), list(STEEP.values())) + 0.02 * best.gamma)
    )


def test_nothing_is_deeper_than_there_is_room():
    for each in shortlist(RANKS, FLAT, CHEAP, 2):
        assert (each.tree.levels if each.tree else each.gamma) <= 2


def test_acceptance_by_rank():
    """Of 10 blocks the first guess was accepted 6 times and tried 14 times, at all levels."""
    stats = RunStats(3, 1, 10, 240, 14, 9, 20, 0, (2, 6, 1, 1), (7, 2, 0), 0.0)
    assert acceptance_by_rank(stats) == pytest.approx((0.5, 0.2, 0.0))


CHOICE = TreeChoice(
    0, Tree((2, 1)), RANKS, FLAT, 0.02,
    (Candidate(0, Tree((2, 1)), 2.0, 1.5, 1.4), Candidate(3, None, 2.1, 1.3, 1.2)),
)  # fmt: skip


def test_says_why():
    assert str(CHOICE).startswith("tree 2-1: 1.40 x measured here. Others: gamma 3 1.20.")
    slow = dataclasses.replace(CHOICE, tree=None)
    assert "Decoding plainly" in str(slow)


def test_remembers(tmp_path):
    assert tuning.remembered(tmp_path, "here") is None
    tuning.remember(tmp_path, "here", CHOICE)
    assert tuning.remembered(tmp_path, "here") == CHOICE
    (tmp_path / "trees.json").write_text('{"here": {"tree": 3}}')
    assert tuning.remembered(tmp_path, "here") is None


@pytest.fixture(scope="module")
def pair():
    target, draft = (
        load_packed(TINY["v1.1"], random_t5_params(TINY["v1.1"], i), "tiny") for i in (0, 1)
    )
    return Pair(target, model_draft(draft), None)


@pytest.mark.slow
def test_measures_the_real_loops(pair, monkeypatch, tmp_path):
    """With forced acceptance 1 anything is better than plain; the choice decodes."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "_TIMED", (1, 3))
    monkeypatch.setattr(tuning, "_REPETITIONS", 1)
    monkeypatch.setattr(tuning, "NODES", (2, 4))
    out = pair.generate(
        [[5, 6, 7, 1], [8, 9, 1]], tree="auto", max_decode_len=6, verifier=ForcedAcceptance(1.0)
    )
    choice = out.choice
    assert isinstance(choice, TreeChoice)
    assert choice.by_rank[0] == 1
    chosen = choice.tree.levels if choice.tree else choice.gamma
    assert out.stats.gamma == chosen
    again = pair.choose_tree(
        [np.array([5, 6, 7, 1]), np.array([8, 9, 1])], max_decode_len=6,
        verifier=ForcedAcceptance(1.0),
    )  # fmt: skip
    assert again == choice


def test_shapes_that_a_draft_cannot_grow_are_left_out(pair):
    opened = Copying().open(None)
    copying = Pair(pair.target, opened, None)

    def decoder(gamma, tree):
        return copying.decoder(
            method="speculative", gamma=gamma, tree=tree, sampling=SamplingConfig(0.0),
            max_decode_len=8, seed=0,
        )  # fmt: skip

    trees = {(2, 1): True, (2, 2): False}
    for branching, possible in trees.items():
        found = tuning.can_decode(decoder, Candidate(0, Tree(branching), None, None))
        assert found == possible
    assert tuning.can_decode(decoder, Candidate(3, None, None, None))
    assert not tuning.can_decode(decoder, Candidate(0, Tree(nodes=4, depth=2), None, None))
