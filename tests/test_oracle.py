"""Losslessness without sampling noise: the real step, every combination of its random numbers.

Here for the model drafter with token verification; test_oracle_parts.py has the others.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from oracle_cases import (
    CASES,
    CAUGHT,
    CONTEXTS,
    LOSSLESS,
    PLAIN,
    PROMPT,
    Case,
    distances,
    distances_of,
)

from specdec.core.standardize import spread
from specdec.core.topology import Topology
from specdec.drafters.base import DraftParams
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.model import ModelDrafter
from specdec.models.base import forced
from specdec.models.toy import ToyModel
from specdec.testing import mutants
from specdec.testing.oracle import Grid
from specdec.testing.toys import dyadic_table, quarters_table
from specdec.types import SamplingConfig


@pytest.mark.parametrize("name", CASES)
def test_lossless(name):
    assert max(distances(CASES[name], gamma=2, limit=3)) < LOSSLESS


@pytest.mark.parametrize(
    ("gamma", "limit"),
    [(1, 6), (4, 2)],
)
def test_lossless_at_other_lengths(gamma, limit):
    # A coin-flip model keeps the grid small. gamma 4, limit 2: every block crosses the limit.
    coins = Case(SamplingConfig(1.0), 3, Grid(2, 2, 2), denominator=2, tables=(6, 1))
    assert max(distances(coins, gamma=gamma, limit=limit)) < LOSSLESS


@pytest.mark.parametrize("tables", [(2, 2), (2, 3)])
def test_lossless_for_perfect_and_other_drafts(tables):
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, tables=tables)) < LOSSLESS


def test_lossless_when_the_draft_is_greedy():
    """Point-mass drafts: accept with p(x), else p without x."""
    case = dataclasses.replace(CASES["temperature 1"], grid=Grid(1, 4, 12))
    off = distances(case, gamma=2, limit=3, draft_sampling=SamplingConfig(0.0))
    assert max(off) < LOSSLESS


def test_a_slow_drafter_is_still_lossless():
    """A draft with a wrong cache guesses badly, but it reports the q it drew from."""
    case = CASES["temperature 1"]
    assert max(distances(case, gamma=2, limit=3, drafter=mutants.NoRollback)) < LOSSLESS


def stopping(drafter=ModelDrafter):
    """A drafter that stops after a guess of probability 1/4, on tables of quarters."""
    return functools.partial(drafter, stop_below=0.3)


@pytest.mark.parametrize("name", ["temperature 1", "greedy"])
def test_lossless_when_the_draft_stops_in_doubt(name):
    assert max(distances(CASES[name], gamma=2, limit=3, drafter=stopping())) < LOSSLESS


def test_a_residual_drawn_from_where_the_draft_stopped_is_caught():
    case, verifier = CASES["temperature 1"], mutants.ResidualAfterStop()
    off = distances(case, gamma=2, limit=3, drafter=stopping(), verifier=verifier)
    assert max(off) > CAUGHT


def test_dropping_the_doubtful_guess_is_caught():
    """It shows where one position has both likely and unlikely guesses that do not end the row."""
    off = distances(CASES["top-k"], gamma=3, limit=3, drafter=stopping(mutants.StopBefore))
    assert max(off) > CAUGHT


@dataclasses.dataclass(frozen=True)
class TerseToy(ToyModel):
    """Generates three of four tokens; its table has a column for each of them."""

    generated: tuple[int, ...] = (3, 1, 2)

    def over_vocabulary(self, params, distribution):
        return spread(distribution, jnp.array(self.generated), self.vocab_size)


@dataclasses.dataclass(frozen=True)
class Misreporting(ModelDrafter):
    """Generates one token and reports the q of another."""

    def propose(self, params, state, random, rules):
        draft, after = super().propose(params, state, random, rules)
        swapped = draft.probs[..., jnp.array([0, 2, 1, 3])]
        return dataclasses.replace(draft, probs=swapped), after


def terse(sampling, drafter=ModelDrafter):
    """Row by row, how far a draft of three tokens takes a target of four from its distribution."""
    fine = dataclasses.replace(CASES["top-k"], sampling=sampling, grid=Grid(4, 12, 60))
    target = dyadic_table(CONTEXTS, 4, 3)
    params = DraftParams(jnp.asarray(quarters_table(CONTEXTS, 2)), sampling.traced())
    return distances_of(drafter(TerseToy(4), 1), params, fine, jnp.asarray(target), limit=2)


@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), SamplingConfig(0.0)])
def test_lossless_when_the_draft_says_some_tokens_only(sampling):
    assert max(terse(sampling)) < LOSSLESS


def test_a_draft_vocabulary_in_another_order_is_caught():
    assert max(terse(SamplingConfig(1.0), Misreporting)) > CAUGHT


@pytest.mark.parametrize(
    "verifier",
    [
        mutants.RedrawFromTarget, mutants.WrongResidualRow, mutants.InclusiveAccept,
        mutants.SharedKeys, mutants.KeepGoing, mutants.BonusFromResidual, mutants.DroppedBonus,
        mutants.SwappedRows, mutants.OffByOne,
    ],
)  # fmt: skip
def test_broken_verifiers_are_caught(verifier):
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, verifier=verifier())) > CAUGHT


def several_ends(model):
    """Distances from the distribution of a target of which tokens 1 and 2 each end a row."""
    case = CASES["top-k"]
    target, draft = (jnp.asarray(case.table(seed)) for seed in case.tables)
    return distances_of(
        ModelDrafter(ToyModel(4), 2), DraftParams(draft, case.sampling.traced()), case, target,
        limit=3, model=model, truth_of=ToyModel(4, eos_ids=(1, 2)),
    )  # fmt: skip


def test_lossless_with_several_end_tokens():
    assert max(several_ends(functools.partial(ToyModel, eos_ids=(1, 2)))) < LOSSLESS


def test_an_end_token_that_is_passed_over_is_caught():
    assert max(several_ends(ToyModel)) > CAUGHT


CONTINUING = functools.partial(ToyModel, reads_prefix=True)
# A prompt of three tokens, and one of two with filler behind it.
PREFIXES = CONTINUING(3).prompt(np.array([[2, 0, 2], [0, 2, 1]]), np.array([3, 2]))


@dataclasses.dataclass(frozen=True)
class ReadsFiller(ToyModel):
    """Its prefix is as long as the longest one of the batch."""

    reads_prefix: bool = True

    def start(self, params, prompt, max_len, target=None):
        begun = super().start(params, prompt, max_len, target)
        cache = dataclasses.replace(
            begun.cache, length=jnp.full_like(begun.cache.length, prompt.prefix.shape[1] - 1)
        )
        return dataclasses.replace(begun, cache=cache)


def after_a_prompt(model, gamma=2):
    """A decoder-only target and draft, whose texts are the prefix."""
    case = CASES["temperature 1"]
    target, draft = (jnp.asarray(case.table(seed)) for seed in case.tables)
    return distances_of(
        ModelDrafter(model(3), gamma), DraftParams(draft, case.sampling.traced()), case, target,
        limit=3, model=model, truth_of=CONTINUING(3), prompt=PREFIXES,
    )  # fmt: skip


def test_lossless_after_a_ragged_prompt():
    assert max(after_a_prompt(CONTINUING)) < LOSSLESS


def test_a_prompt_of_which_filler_is_read_is_caught():
    assert max(after_a_prompt(ReadsFiller)) > CAUGHT


# The start token and two forced tokens; and one, with filler behind it. Both rows have inputs.
FORCED = forced(PROMPT, np.array([[2, 0], [2, 1]]), np.array([2, 1]))


@dataclasses.dataclass(frozen=True)
class ForgetsForced(ToyModel):
    """Begins with the start token alone."""

    def start(self, params, prompt, max_len, target=None):
        alone = dataclasses.replace(
            prompt, prefix=prompt.prefix[:, :1], prefix_lengths=jnp.ones_like(prompt.prefix_lengths)
        )
        return super().start(params, alone, max_len, target)


def after_forced_tokens(model, drafter=None, params=None, grid=PLAIN):
    """An encoder-decoder target whose outputs are made to begin with given tokens."""
    case = dataclasses.replace(CASES["temperature 1"], grid=grid)
    target, draft = (jnp.asarray(case.table(seed)) for seed in case.tables)
    return distances_of(
        drafter or ModelDrafter(model(3), 2), params or DraftParams(draft, case.sampling.traced()),
        case, target, limit=3, model=model, truth_of=ToyModel(3), prompt=FORCED,
    )  # fmt: skip


def test_lossless_after_forced_tokens():
    assert max(after_forced_tokens(ToyModel)) < LOSSLESS


def test_lossless_after_forced_tokens_that_are_copied():
    """Its first guesses follow the forced tokens, in the input or among themselves."""
    copying = CopyingDrafter(Topology.chain(2))
    assert max(after_forced_tokens(ToyModel, copying, (), Grid(1, 4, 12))) < LOSSLESS


@pytest.mark.parametrize(
    "model", [ForgetsForced, functools.partial(ReadsFiller, reads_prefix=False)]
)
def test_forced_tokens_that_are_forgotten_or_filler_that_is_read_are_caught(model):
    assert max(after_forced_tokens(model)) > CAUGHT


@pytest.mark.parametrize("verifier", [mutants.SwappedRows, mutants.OffByOne])
def test_broken_verifiers_are_caught_when_greedy(verifier):
    assert max(distances(CASES["greedy"], gamma=2, limit=3, verifier=verifier())) > CAUGHT


@pytest.mark.parametrize("name", ["temperature 0.5", "top-k"])
def test_an_unwarped_q_is_caught(name):
    case = CASES[name]
    if name == "temperature 0.5":  # p**0.5 is off the dyadic grid; a fine one is close enough.
        case = dataclasses.replace(case, grid=Grid(4, 60, 60))
    else:
        case = dataclasses.replace(case, grid=Grid(4, 68, 60))
    off = distances(case, gamma=1, limit=3, drafter=mutants.UnwarpedDraft)
    assert max(off) > CAUGHT


@pytest.mark.parametrize("model", [mutants.StaleTarget, mutants.AddingCache])
def test_broken_caches_are_caught(model):
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, model=model)) > CAUGHT
