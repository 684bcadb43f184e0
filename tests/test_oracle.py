"""Losslessness without sampling noise: the real step, every combination of its random numbers.

Bounds: the oracle's only error is float32 rounding of probabilities, about 1e-7; a mutant must be
off by more than 1e-3 in total variation.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.drafters.model import ModelDrafter
from specdec.models.toy import ToyModel
from specdec.testing import mutants
from specdec.testing.oracle import Grid, exact_law, model_law, total_variation
from specdec.testing.toys import dyadic_table, reference_distribution, tailed_table
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

LOSSLESS, CAUGHT = 1e-6, 1e-3
INPUTS = np.array([[2, 1, 0], [1, 2, 0]])  # Hashes 4 and 5: different contexts.
CONTEXTS = 31
PLAIN = Grid(proposal=4, acceptance=6, final=12)


@dataclasses.dataclass(frozen=True)
class Case:
    """One way of sampling, with tables that keep all its decisions on the grid."""

    sampling: SamplingConfig
    vocab_size: int
    grid: Grid
    denominator: int = 4
    tables: tuple[int, int] = (0, 1)  # Seeds of the target's and the draft's.

    def table(self, seed):
        temperature = self.sampling.temperature or 1.0
        if self.vocab_size == 3:
            return dyadic_table(
                CONTEXTS, 3, seed, denominator=self.denominator, temperature=temperature
            )
        return tailed_table(CONTEXTS, self.vocab_size, seed, temperature)


CASES = {
    "temperature 1": Case(SamplingConfig(1.0), 3, PLAIN),
    "temperature 0.5": Case(SamplingConfig(0.5), 3, PLAIN),
    "greedy": Case(SamplingConfig(0.0), 3, Grid(1, 1, 1), tables=(7, 1)),
    "top-k": Case(SamplingConfig(1.0, top_k=3), 4, Grid(4, 2, 4)),
    "top-p": Case(SamplingConfig(1.0, top_p=0.9), 4, Grid(4, 2, 4)),
    "temperature, top-k and top-p": Case(SamplingConfig(2.0, 3, 0.9), 4, Grid(4, 2, 4)),
}


def distances(
    case, *, gamma, limit, verifier=None, drafter=ModelDrafter, model=ToyModel, tables=None,
    draft_sampling=None,
):  # fmt: skip
    """Total variation, row by row, between the real loop's law and the target's own."""
    sane = ToyModel(case.vocab_size)
    target, draft = (jnp.asarray(case.table(seed)) for seed in tables or case.tables)
    law = exact_law(
        model(case.vocab_size), target,
        drafter(sane, gamma, draft_sampling or case.sampling), draft,
        verifier or TokenVerifier(), INPUTS,
        sampling=case.sampling, limit=limit, grid=case.grid,
    )  # fmt: skip
    truth = model_law(
        sane, target, INPUTS, lambda x: reference_distribution(x, case.sampling), limit=limit
    )
    assert truth[0] != truth[1], "both rows have the same law; swapped rows would go unseen"
    assert [pytest.approx(1) == sum(row.values()) for row in law] == [True, True]
    return [total_variation(a, b) for a, b in zip(law, truth, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_lossless(name):
    assert max(distances(CASES[name], gamma=2, limit=3)) < LOSSLESS


@pytest.mark.parametrize(("gamma", "limit"), [(1, 6), (3, 6), (4, 5), (4, 2)])
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


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("temperature 1", 2), ("temperature 0.5", 2), ("greedy", 2), ("top-k", 2), ("top-k", 3)],
)
def test_lossless_when_the_draft_stops_in_doubt(name, gamma):
    assert max(distances(CASES[name], gamma=gamma, limit=3, drafter=stopping())) < LOSSLESS


def test_a_residual_drawn_from_where_the_draft_stopped_is_caught():
    case, verifier = CASES["temperature 1"], mutants.ResidualAfterStop()
    off = distances(case, gamma=2, limit=3, drafter=stopping(), verifier=verifier)
    assert max(off) > CAUGHT


def test_dropping_the_doubtful_guess_is_caught():
    """It shows where one position has both likely and unlikely guesses that do not end the row."""
    off = distances(CASES["top-k"], gamma=3, limit=3, drafter=stopping(mutants.StopBefore))
    assert max(off) > CAUGHT


@pytest.mark.parametrize(
    "verifier",
    [
        mutants.RedrawFromTarget,
        mutants.WrongResidualRow,
        mutants.InclusiveAccept,
        mutants.SharedKeys,
        mutants.KeepGoing,
        mutants.BonusFromResidual,
        mutants.DroppedBonus,
        mutants.SwappedRows,
        mutants.OffByOne,
    ],
)
def test_broken_verifiers_are_caught(verifier):
    assert max(distances(CASES["temperature 1"], gamma=2, limit=3, verifier=verifier())) > CAUGHT


@pytest.mark.parametrize("verifier", [mutants.SwappedRows, mutants.OffByOne])
def test_broken_verifiers_are_caught_when_greedy(verifier):
    assert max(distances(CASES["greedy"], gamma=2, limit=3, verifier=verifier())) > CAUGHT


@pytest.mark.parametrize("name", ["temperature 0.5", "top-k", "top-p"])
def test_an_unwarped_q_is_caught(name):
    case = CASES[name]
    if name == "temperature 0.5":  # p**0.5 is off the dyadic grid; a fine one is close enough.
        case = dataclasses.replace(case, grid=Grid(4, 60, 60))
    else:
        case = dataclasses.replace(case, grid=Grid(4, 68, 60))
    off = distances(case, gamma=1, limit=3, drafter=mutants.UnwarpedDraft)
    assert max(off) > CAUGHT


@pytest.mark.parametrize("model", [mutants.StaleTarget, mutants.AddingCache])
@pytest.mark.parametrize("name", ["temperature 1", "greedy"])
def test_broken_caches_are_caught(name, model):
    assert max(distances(CASES[name], gamma=2, limit=3, model=model)) > CAUGHT
