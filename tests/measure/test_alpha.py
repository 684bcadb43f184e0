"""Alpha along texts, against distributions computed one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import logits_along, prompt_of

from specdec.core.topology import Topology
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.copying import CopyingDrafter
from specdec.drafters.hierarchical import HierarchicalDrafter
from specdec.drafters.model import ModelDrafter
from specdec.drafters.random import RandomDrafter
from specdec.measure import alpha
from specdec.models.toy import ToyModel
from specdec.types import SamplingConfig

V, ROWS, LENGTH = 7, 4, 9
TOY = ToyModel(V)
COUNTS = np.array([9, 3, 1, 6])
INPUTS = jnp.asarray([[2, 3, 4, 1], [5, 1, 0, 0], [3, 1, 0, 0], [2, 2, 6, 1]])
TOKENS = np.where(
    np.arange(LENGTH) < COUNTS[:, None],
    np.random.default_rng(0).integers(2, V, (ROWS, LENGTH)),
    0,
)


def table(seed):
    return 2 * jax.random.normal(jax.random.key(seed), (31, V))


def distributions(params):
    """softmax at each position of each text, [R, L, V], the text given."""
    start = jnp.zeros((ROWS, 1), jnp.int32)
    fed = jnp.concatenate([start, jnp.asarray(TOKENS)[:, :-1]], axis=1)
    logits = logits_along(TOY, params, prompt_of(TOY, INPUTS), fed)
    return np.asarray(jax.nn.softmax(logits), np.float64)


def drawn(params, temperature):
    return DraftParams(params, SamplingConfig(temperature).traced())


def replay(drafter, params, temperature):
    found = alpha.replay(
        Engine(TOY, drafter), EngineParams(table(0), SamplingConfig(temperature).traced(), params),
        prompt_of(TOY, INPUTS), jnp.arange(ROWS), LENGTH, 0, jnp.asarray(TOKENS),
        jnp.asarray(COUNTS),
    )  # fmt: skip
    return jax.tree.map(np.asarray, found)


def check(found, p, q, relative=None):
    inside = np.arange(LENGTH) < COUNTS[:, None]
    at = (np.arange(ROWS)[:, None], np.arange(LENGTH), TOKENS)
    expected = np.where(inside, np.minimum(p, q).sum(-1), 0)
    np.testing.assert_allclose(found.prob, expected, atol=1e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(q[at] > 0, np.minimum(1, q[at] / p[at]), 0.0)
    np.testing.assert_allclose(found.ratio, np.where(inside, ratio, 0), atol=1e-5)
    for k, lenience in enumerate(alpha.LENIENCES):
        if relative is None:
            lenient = np.minimum(q, p / lenience).sum(-1)
        else:
            lenient = np.where(relative >= lenience, q, 0).sum(-1)
        np.testing.assert_allclose(found.lenient[..., k], np.where(inside, lenient, 0), atol=1e-6)


@pytest.mark.parametrize("name", ["model", "hierarchical"])
def test_a_model_that_is_sampled(name):
    if name == "model":
        found = replay(ModelDrafter(TOY, 1), drawn(table(1), 1.0), 1.0)
    else:
        drafter = HierarchicalDrafter(TOY, CopyingDrafter(Topology.chain(2)), 1)
        found = replay(drafter, (drawn(table(1), 1.0), ()), 1.0)
    check(found, distributions(table(0)), distributions(table(1)))


@pytest.mark.parametrize("draft_temperature", [0.0, 1.0])
def test_a_greedy_target(draft_temperature):
    p, q = distributions(table(0)), distributions(table(1))
    if not draft_temperature:
        q = np.eye(V)[q.argmax(-1)]
    found = replay(ModelDrafter(TOY, 1), drawn(table(1), draft_temperature), 0.0)
    relative = p / p.max(-1, keepdims=True)
    check(found, np.eye(V)[p.argmax(-1)], q, relative=relative)


def test_positions_without_a_guess_are_left_out():
    found = replay(CopyingDrafter(Topology.chain(1)), (), 1.0)
    assert not found.guessed[:, 0].any()  # Nothing was generated yet that could be found again.
    assert found.prob[0].any()
    assert not found.prob[~found.guessed].any()
    rows = [jax.tree.map(lambda leaf, i=i, n=n: leaf[i, :n], found) for i, n in enumerate(COUNTS)]
    summary = alpha.summary(rows)
    assert 0 < summary["guess_rate"] == found.guessed.sum() / COUNTS.sum() < 1
    assert summary["alpha"] == pytest.approx(found.prob.sum() / found.guessed.sum(), rel=1e-5)
    assert summary["lenience"][1.0]["alpha"] == pytest.approx(summary["alpha"], rel=1e-5)
    p = distributions(table(0))
    for row, t in zip(*np.nonzero(found.prob), strict=True):
        assert np.isclose(p[row, t], found.prob[row, t], atol=1e-6).any()


def test_a_drafter_of_more_guesses_is_refused():
    with pytest.raises(ValueError, match="one guess is needed, this has 2"):
        replay(RandomDrafter(Topology.chain(2), V), (), 1.0)


def test_summary():
    rows = [
        alpha.Acceptance(*map(np.array, each))
        for each in (
            ([True] * 2, [1.0, 0.5], [1.0, 0.25], [[1.0] * 4, [0.5, 0.6, 0.7, 0.8]]),
            ([True], [0.75], [0.5], [[0.75, 0.75, 0.8, 1.0]]),
        )
    ]
    found = alpha.summary(rows)
    assert found["alpha"] == pytest.approx(0.75)
    assert found["num_tokens"] == 3
    low, high = found["alpha_interval"]
    assert low <= 0.75 <= high
    assert found["lenience"][0.3]["alpha"] == pytest.approx(2.5 / 3)
    assert found["lenience"][0.3]["total_variation"] == pytest.approx(0.25 / 3)
    assert found["lenience"][1.0]["total_variation"] == 0
    assert set(found["autocorrelation"]) == {1}
    # Text 0 from its first token, gamma 1: 2 tokens in a block if r_1 = 1 accepts.
    assert found["block_efficiency"][1]["measured"] == pytest.approx(3 / 2)
    with pytest.raises(ValueError, match="no guess"):
        alpha.summary([jax.tree.map(lambda leaf: leaf[:0], rows[0])])
