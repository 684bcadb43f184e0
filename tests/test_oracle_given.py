"""The exact oracle on drafts that follow given texts, whatever these are."""

import dataclasses
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, PROMPT, distances_of
from oracle_trees import FIRST, block_grid, fractions_of, rolled

from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.given import GivenDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.merged import MergedDrafter
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.toy import ToyModel
from specdec.testing import mutants
from specdec.testing.oracle import Grid
from specdec.testing.toys import quarters_table
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.point_mass import PointMassVerifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.token import TokenVerifier
from specdec.verifiers.traversal import TraversalVerifier

TOY, EOS = ToyModel(3), 1
SAMPLED, GREEDY = CASES["temperature 1"], CASES["greedy"]
TARGET = jnp.asarray(SAMPLED.table(2))  # Some tokens have probability 0.
STEEP = jnp.asarray(np.stack([np.roll(TARGET[0], i % 3) for i in range(31)]))  # 3/4, 1/4, 0.
CHAIN, CHAINS = Topology.chain(2), Topology.branching((2, 1))


def prompt_with(*rows):
    """The two rows of the oracle's prompt, each with its texts."""
    given = np.zeros((2, 24), np.int32)
    for row, texts in zip(given, rows, strict=True):
        packed = [token for text in texts for token in (0, *(id + 1 for id in text))]
        row[: len(packed)] = packed
    return dataclasses.replace(PROMPT, given=given)


PROMPTS = {
    "wrong, and none": prompt_with([[2, 0, 2, 0]], []),
    "ends at once, and in its middle": prompt_with([[EOS]], [[0, EOS, 2, 0, 0, EOS, 2]]),
    "longer than the output": prompt_with([[0, 2] * 8], [[0, 0, 2, 2] * 4]),
    "several": prompt_with([[0, 2, EOS], [2, 2], [0]], [[2], [0, 0, 0, EOS], [2, 0]]),
}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("topology", [CHAIN, CHAINS], ids=["chain", "chains"])
def test_any_texts_are_lossless(name, topology):
    chain = topology.is_chain
    case = dataclasses.replace(SAMPLED, grid=Grid(1, 4, 12) if chain else Grid(1, 1, 4))
    drafter = GivenDrafter(topology, max_match=2)
    verifier = TokenVerifier() if chain else PointMassVerifier()
    found = distances_of(
        drafter, (), case, TARGET if chain else STEEP, limit=4, verifier=verifier,
        prompt=PROMPTS[name],
    )  # fmt: skip
    assert max(found) < LOSSLESS


@pytest.mark.parametrize(
    ("verifier", "topology"),
    [(BlockVerifier(), CHAIN), (RecursiveVerifier(), CHAINS), (TraversalVerifier(), CHAINS)],
    ids=["block", "recursive", "traversal"],
)
def test_each_verifier_of_point_masses(verifier, topology):
    grid = Grid(1, 24, 24, first=FIRST)
    if topology.is_chain:
        one_hot = {tuple(map(Fraction, row)) for row in np.eye(3).tolist()}
        grid = dataclasses.replace(block_grid(fractions_of(STEEP), one_hot, 2, 1), first=0.0)
    case = dataclasses.replace(SAMPLED, grid=grid)
    found = distances_of(
        GivenDrafter(topology, 2), (), case, STEEP, limit=3, verifier=verifier,
        prompt=PROMPTS["several"],
    )  # fmt: skip
    assert max(found) < LOSSLESS


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_tokens_are_the_targets(name):
    target = jnp.asarray(GREEDY.table(GREEDY.tables[0]))
    for topology, verifier in ((CHAIN, TokenVerifier()), (CHAINS, RecursiveVerifier())):
        found = distances_of(
            GivenDrafter(topology), (), GREEDY, target, limit=5, verifier=verifier,
            prompt=PROMPTS[name],
        )  # fmt: skip
        assert max(found) == 0


def test_a_model_that_follows_texts_is_lossless():
    own = DraftParams(jnp.asarray(quarters_table(31, 2)), SamplingConfig(1.0).traced())
    drafter = HierarchicalDrafter(TOY, GivenDrafter(Topology.chain(1), 2), 1)
    case = dataclasses.replace(SAMPLED, grid=Grid(1, 2, 4, inner=Grid(1, 4, 12)))
    found = distances_of(
        drafter, (own, ()), case, TARGET, limit=3, prompt=PROMPTS["ends at once, and in its middle"]
    )
    assert max(found) < LOSSLESS


def test_a_model_beside_texts_is_lossless():
    tree = Topology.branching((1,))
    both = ModelTreeDrafter(TOY, tree, catch_up=2), GivenDrafter(tree, 2)
    case = dataclasses.replace(SAMPLED, grid=Grid(2, 24, 24, first=FIRST))
    params = DraftParams(rolled((1, 1, 0), 2, 1), SamplingConfig(1.0).traced()), ()
    found = distances_of(
        MergedDrafter(both, 3), params, case, STEEP, limit=3, verifier=RecursiveVerifier(),
        prompt=PROMPTS["wrong, and none"],
    )  # fmt: skip
    assert max(found) < LOSSLESS


def test_a_wrong_q_is_caught():
    case = dataclasses.replace(SAMPLED, grid=Grid(1, 4, 12))
    drafter = mutants.GivenUniform(CHAIN, 2)
    found = distances_of(drafter, (), case, TARGET, limit=3, prompt=PROMPTS["several"])
    assert max(found) > CAUGHT
