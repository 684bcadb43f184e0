"""Ways of sampling on which all decisions fall on the oracle's grid, and the comparison itself.

Bounds: the oracle's only error is float32 rounding of probabilities, about 1e-7; a mutant must be
off by more than 1e-3 in total variation.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.models.toy import ToyModel
from specdec.testing.oracle import Grid, exact_distribution, model_distribution, total_variation
from specdec.testing.toys import dyadic_table, reference_distribution, tailed_table
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

LOSSLESS, CAUGHT = 1e-6, 1e-3
# Hashes 4 and 5: different contexts.
PROMPT = ToyModel(3).prompt(np.array([[2, 1, 0], [1, 2, 0]]), np.array([2, 2]))
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
    "min-p": Case(SamplingConfig(1.0, min_p=0.2), 4, Grid(4, 2, 4)),
    "typical-p": Case(SamplingConfig(1.0, typical_p=0.9), 4, Grid(4, 2, 4)),
    "temperature, top-k and top-p": Case(SamplingConfig(2.0, 3, 0.9), 4, Grid(4, 2, 4)),
}


def distances(
    case, *, gamma, limit, verifier=None, drafter=ModelDrafter, model=ToyModel, tables=None,
    draft_sampling=None,
):  # fmt: skip
    """Total variation, row by row, between the real loop's distribution and the target's own."""
    sampling = draft_sampling or case.sampling
    target, draft = (jnp.asarray(case.table(seed)) for seed in tables or case.tables)
    return distances_of(
        drafter(ToyModel(case.vocab_size), gamma), DraftParams(draft, sampling.traced()),
        case, target, limit=limit, verifier=verifier, model=model,
    )  # fmt: skip


def distances_of(
    drafter, drafter_params, case, target, *, limit, verifier=None, model=ToyModel, truth_of=None,
    prompt=PROMPT,
):  # fmt: skip
    """The same for any drafter, any table for the target, and the distribution of ``truth_of``."""
    distribution = exact_distribution(
        Engine(model(case.vocab_size), drafter, verifier or TokenVerifier()),
        EngineParams(target, case.sampling.traced(), drafter_params), prompt,
        limit=limit, grid=case.grid,
    )  # fmt: skip
    truth = target_distribution(case, target, limit, truth_of or ToyModel(case.vocab_size), prompt)
    assert truth[0] != truth[1], (
        "both rows have the same distribution; swapped rows would go unseen"
    )
    assert [pytest.approx(1) == sum(row.values()) for row in distribution] == [True, True]
    return [total_variation(a, b) for a, b in zip(distribution, truth, strict=True)]


_distributions = {}


def target_distribution(case, target, limit, model, prompt=PROMPT):
    """The target's own distribution, walked once for each table."""
    key = case.sampling, np.asarray(target).tobytes(), limit, model, id(prompt)
    if key not in _distributions:
        _distributions[key] = model_distribution(
            model, target, prompt,
            lambda x: reference_distribution(x, case.sampling), limit=limit,
        )  # fmt: skip
    return _distributions[key]
