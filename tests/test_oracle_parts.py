"""The exact oracle on every drafter under every verifier, and on broken variants of each."""

import dataclasses
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import CASES, CAUGHT, LOSSLESS, PROMPT, distances_of, target_distribution
from oracle_trees import block_grid, fractions_of

from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.random import RandomDrafter
from specdec.models.toy import ToyModel
from specdec.testing import mutants
from specdec.testing.oracle import Grid, exact_distribution, total_variation
from specdec.testing.toys import dyadic_ngrams, quarters_table
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier

TOY = ToyModel(3)
SAMPLED, GREEDY = CASES["temperature 1"], CASES["greedy"]


def make(name, gamma, sampling):
    """A drafter and its parameters."""
    drawn = sampling.traced()
    if name == "model":
        return ModelDrafter(TOY, gamma), DraftParams(jnp.asarray(quarters_table(31, 2)), drawn)
    if name == "bigram":
        tables = dyadic_ngrams(2)
        return NgramDrafter(Topology.chain(gamma), tables.order), DraftParams(tables, drawn)
    if name == "copying":
        return CopyingDrafter(Topology.chain(gamma), max_match=2), ()
    if name == "random":
        return RandomDrafter(Topology.chain(gamma), TOY.vocab_size), ()
    inner, inner_params = make(name.removeprefix("model over "), 1, sampling)
    own = DraftParams(jnp.asarray(quarters_table(31, 2)), drawn)
    return HierarchicalDrafter(TOY, inner, gamma), (own, inner_params)


@dataclasses.dataclass(frozen=True)
class FewBits(ToyModel):
    """The target's copy: of its two tables, it reads the one of few bits."""

    of_target: bool = True

    def logits(self, params, hidden):
        return super().logits(params[0], hidden)


class FullReported(ModelDrafter):
    """Draws guesses with few bits, and reports the q of the full weights."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        full = DraftParams(params.weights[::-1], params.sampling)
        reported = super().propose(full, state, random, rules)[0].probs
        return dataclasses.replace(draft, probs=reported), after


def quantized_off(drafter, case):
    tables = (quarters_table(31, 2), case.table(case.tables[0]))
    params = DraftParams(jnp.stack(tuple(map(jnp.asarray, tables))), case.sampling.traced())
    return distances_of(drafter(FewBits(3), 1), params, case, target(case), limit=3)


def test_lossless_with_the_targets_own_copy():
    """That starts from what the target made of the inputs; greedily, of weights really rounded."""
    assert max(quantized_off(ModelDrafter, SAMPLED)) < LOSSLESS
    full = target(GREEDY)
    model, few = TOY.quantized(full, 8, 16, of_target=True)
    params = DraftParams(few, GREEDY.sampling.traced())
    for gamma in (1, 3):
        off = distances_of(ModelDrafter(model, gamma), params, GREEDY, full, limit=4)
        assert max(off) < LOSSLESS


def test_the_q_of_the_full_weights_is_caught():
    assert max(quantized_off(FullReported, SAMPLED)) > CAUGHT


def blocks_of_two(name):
    """The sampled case, with the cells in which block verification of two guesses decides alike."""
    drafts = {tuple(map(Fraction, row)) for row in Q[name].tolist()}
    grid = block_grid(fractions_of(STEEP), drafts, 2, 1 if name == "copying" else 12)
    return dataclasses.replace(SAMPLED, grid=dataclasses.replace(grid, first=0.0))


def target(case):
    return jnp.asarray(case.table(case.tables[0]))


TARGET = jnp.asarray(SAMPLED.table(2))
# Fewer distributions, for block verification has many thresholds: 3/4, 1/4, 0 in some order.
STEEP = jnp.asarray(np.stack([np.roll(TARGET[0], i % 3) for i in range(31)]))
Q = {
    "model": np.round(np.exp(quarters_table(31, 2)), 6),
    "copying": np.eye(3),
}
GRIDS = {
    "model": Grid(4, 2, 4),
    "bigram": Grid(4, 6, 12),
    "copying": Grid(1, 4, 12),
    "random": Grid(3, 4, 4),
    "model over bigram": Grid(1, 2, 4, inner=Grid((1 / 4, 1 / 2), (1 / 3, 1 / 2, 2 / 3), 4)),
    "model over copying": Grid(1, 2, 4, inner=Grid(1, 4, 12)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_each_drafter_is_lossless(name):
    gamma = 1 if "over" in name else 2
    case = dataclasses.replace(SAMPLED, grid=GRIDS[name])
    drafter, params = make(name, gamma, SamplingConfig(1.0))
    assert max(distances_of(drafter, params, case, TARGET, limit=3)) < LOSSLESS


def two_guesses(drafter=HierarchicalDrafter):
    """Inner rounds in a row, and blocks that end in the middle of one: (drafter, ..., target)."""
    built, params = make("model over bigram", 2, SamplingConfig(1.0))
    case = dataclasses.replace(SAMPLED, grid=GRIDS["model over bigram"])
    return drafter(built.model, built.inner, 2), params, case, TARGET


def test_hierarchical_drafts_of_two_guesses_are_lossless():
    assert max(distances_of(*two_guesses(), limit=4)) < LOSSLESS


@pytest.mark.parametrize("broken", [mutants.InnerReported, mutants.InnerSharedRounds])
def test_broken_hierarchical_drafts_are_caught(broken):
    assert max(distances_of(*two_guesses(broken), limit=3)) > CAUGHT


@pytest.mark.parametrize(
    ("name", "verifier"),
    [("model", BlockVerifier()), ("copying", TokenVerifier()),
     ("model over bigram", TokenVerifier())],
)  # fmt: skip
def test_each_drafter_is_lossless_when_greedy(name, verifier):
    """A greedy target, with drafts that are drawn and drafts that are not."""
    for sampling in (SamplingConfig(0.0), SamplingConfig(1.0)):
        grid = GRIDS[name] if sampling.temperature else Grid(3, 1, 1, inner=Grid(1, 1, 1))
        case = dataclasses.replace(GREEDY, grid=dataclasses.replace(grid, acceptance=1, final=1))
        drafter, params = make(name, 2, sampling)
        off = distances_of(drafter, params, case, target(case), limit=4, verifier=verifier)
        assert max(off) < LOSSLESS


@pytest.mark.parametrize("name", Q)
def test_block_verification_is_lossless(name):
    drafter, params = make(name, 2, SamplingConfig(1.0))
    case, verifier = blocks_of_two(name), BlockVerifier()
    assert max(distances_of(drafter, params, case, STEEP, limit=3, verifier=verifier)) < LOSSLESS


# Only token by token do some mistakes of block verification show with this drafter.
@pytest.mark.parametrize(
    "verifier",
    [mutants.LaterCorrection(), mutants.TokenAcceptance(), mutants.StopsAtRejection(),
     mutants.UnboundedReach()],
)  # fmt: skip
def test_broken_block_verifiers_are_caught(verifier):
    case = blocks_of_two("model")
    drafter, params = make("model", 2, SamplingConfig(1.0))
    assert max(distances_of(drafter, params, case, STEEP, limit=3, verifier=verifier)) > CAUGHT


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (mutants.UnigramReported, "bigram"),
        (mutants.CopyUniform, "copying"),
        (mutants.RandomWithoutLast, "random"),
    ],
)
def test_broken_drafters_are_caught(broken, name):
    case = dataclasses.replace(SAMPLED, grid=GRIDS[name])
    drafter, params = make(name, 2, SamplingConfig(1.0))
    fields = {f.name: getattr(drafter, f.name) for f in dataclasses.fields(drafter)}
    assert max(distances_of(broken(**fields), params, case, TARGET, limit=3)) > CAUGHT


LENIENCE = 0.5
LENIENT_TARGET = jnp.asarray(SAMPLED.table(0))  # Unlike the draft: little is accepted for certain.


@pytest.mark.parametrize("name", ["model", "copying"])
def test_lenience_is_lossy_and_bounded(name):
    """No token has more than p / l of probability, so no row of n tokens more than p / l^n."""
    distribution, truth = lenient_distributions(LenientVerifier(LENIENCE), name)
    assert not LenientVerifier(LENIENCE).lossless
    assert max(total_variation(a, b) for a, b in zip(distribution, truth, strict=True)) > CAUGHT
    assert excess(distribution, truth) < LOSSLESS


def test_a_lenient_correction_that_breaks_the_bound_is_caught():
    assert excess(*lenient_distributions(mutants.LenientRedraw(LENIENCE), "model")) > CAUGHT


def test_lenience_one_is_exact():
    case = dataclasses.replace(SAMPLED, grid=GRIDS["model"])
    drafter, params = make("model", 2, SamplingConfig(1.0))
    verifier = LenientVerifier(1.0)
    assert verifier.lossless
    assert max(distances_of(drafter, params, case, TARGET, limit=3, verifier=verifier)) < LOSSLESS


def lenient_distributions(verifier, name):
    """The distribution under lenience and the target's own, of rows of at most two tokens."""
    grid = dataclasses.replace(GRIDS[name], acceptance=12, final=60)
    drafter, params = make(name, 1, SamplingConfig(1.0))
    params = EngineParams(LENIENT_TARGET, SAMPLED.sampling.traced(), params)
    distribution = exact_distribution(
        Engine(TOY, drafter, verifier), params, PROMPT, limit=2, grid=grid
    )
    return distribution, target_distribution(
        SAMPLED, LENIENT_TARGET, 2, ToyModel(SAMPLED.vocab_size)
    )


def excess(distribution, truth):
    """By how much some row is likelier than the bound allows."""
    return max(
        p - own.get(tokens, 0.0) / LENIENCE ** len(tokens)
        for row, own in zip(distribution, truth, strict=True)
        for tokens, p in row.items()
    )
