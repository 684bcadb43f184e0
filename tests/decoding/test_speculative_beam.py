"""Speculative beams are plain beams in fewer calls: the same tokens, scores, order and lengths."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import prompt_of

from specdec.decoding.beam import BeamLoop
from specdec.decoding.beam_blocks import ENDS, BeamEngine
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.loop import decode
from specdec.models.toy import ToyModel
from specdec.testing import beam_mutants

BUCKET, V = 16, 6
INPUTS = np.array([[2, 3, 1], [3, 1, 0], [5, 2, 1], [4, 1, 0], [2, 1, 0]])
FIELDS = ("tokens", "num_tokens", "scores", "log_probs", "steps", "failed")
T5X, HUGGING_FACE = BeamConfig(3), BeamConfig(3, "huggingface")
RULES = {
    "t5x": T5X,
    "t5x without a penalty": BeamConfig(2, alpha=0.0),
    **{
        f"huggingface, early_stopping={early}, length_penalty={power}": BeamConfig(
            3, "huggingface", length_penalty=power, early_stopping=early
        )
        for early, power in itertools.product((False, True, "never"), (0.0, 2.0))
    },
}


@functools.cache
def toy(seed, eos_ids=(1,), contexts=11):
    """A table, and one that says about the same: a draft that is often right."""
    generator = np.random.default_rng(seed)
    table = 2 * generator.normal(size=(contexts, V)).astype(np.float32)
    near = table + 0.4 * generator.normal(size=table.shape).astype(np.float32)
    return ToyModel(V, eos_ids=eos_ids), jnp.asarray(table), jnp.asarray(near)


def searched(engine, config, *weights, limit, trace=False):
    found = decode(
        BeamLoop(engine), (config.traced(BUCKET), *weights), prompt_of(engine.target, INPUTS),
        np.arange(len(INPUTS)), limit, 0, output_bucket=BUCKET, trace=trace,
    )  # fmt: skip
    return jax.tree.map(np.asarray, found)


def plain(model, params, config, limit=12):
    return searched(BeamEngine(model, config.num_beams), config, params, (), limit=limit)


def speculative(
    model, params, draft_params, config, *, u, gamma, limit=12, kind=BeamEngine, trace=False
):
    engine = kind(model, config.num_beams, model, u, gamma)
    return searched(engine, config, params, draft_params, limit=limit, trace=trace)


def differing(found, expected):
    """The names of what is not the same to the last bit."""
    return [
        name for name in FIELDS if not np.array_equal(getattr(found, name), getattr(expected, name))
    ]


@pytest.mark.parametrize(
    ("config", "gamma"),
    [*((config, 3) for config in RULES.values()), (T5X, 1), (HUGGING_FACE, 4)],
    ids=[*RULES, "a short block", "a long block"],
)
def test_tables(config, gamma):
    """Drafts that are the target, near it, and unlike it; u = W and more."""
    model, table, near = toy(0)
    expected = plain(model, table, config)
    if config.length_penalty != 2.0:  # Which favours long ones: none ends before the limit.
        assert len(set(expected.steps.tolist())) > 1, "rows should be done at different times"
    wide, wider = config.num_beams, config.num_beams + 2
    for draft, u in ((table, wide), (near, wide), (near, wider), (toy(7)[1], wider)):
        found = speculative(model, table, draft, config, u=u, gamma=gamma)
        assert differing(found, expected) == []
        calls, levels = found.stats.target_calls, np.arange(gamma + 2)
        np.testing.assert_array_equal(found.levels @ levels, expected.steps)
        np.testing.assert_array_equal(found.levels.sum(axis=1), calls)
        np.testing.assert_array_equal(found.ends.sum(axis=1), calls)
        if draft is not table:
            continue
        # The target's own beams survive: as few calls as there can be, and no miss.
        np.testing.assert_array_equal(calls, -(-expected.steps // (gamma + 1)))
        assert found.ends[:, ENDS.index("miss")].tolist() == [0] * len(INPUTS)


@pytest.mark.parametrize("config", [T5X, HUGGING_FACE], ids=["t5x", "huggingface"])
@pytest.mark.parametrize("seed", range(3))
def test_other_tables_and_several_ends(config, seed):
    model, table, near = toy(seed, (1, 4))
    expected = plain(model, table, config)
    found = speculative(model, table, near, config, u=4, gamma=3)
    assert differing(found, expected) == []


@pytest.mark.parametrize("config", [T5X, HUGGING_FACE], ids=["t5x", "huggingface"])
@pytest.mark.parametrize("limit", [0, 1, 5, 16])
def test_limits_inside_a_block(config, limit):
    model, table, near = toy(3)
    expected = plain(model, table, config, limit=limit)
    found = speculative(model, table, near, config, u=4, gamma=3, limit=limit)
    assert differing(found, expected) == []
    if limit:
        at_limit = found.ends[:, ENDS.index("limit")]
        np.testing.assert_array_equal(at_limit, expected.steps == limit)


def test_a_trace_tells_the_beams():
    """Tokens of a row's hypotheses, put together from what each level kept."""
    model, table, near = toy(0)
    found = speculative(model, table, near, T5X, u=4, gamma=3, trace=True)
    expected = plain(model, table, T5X)
    trace, wide = found.trace, T5X.num_beams
    for row in range(len(INPUTS)):
        calls = found.stats.target_calls[row]
        num_levels = trace.num_levels[row]
        assert (num_levels[:calls] > 0).all()
        assert not num_levels[calls:].any()
        assert num_levels.sum() == expected.steps[row]
        for block in range(calls):
            missed = ENDS[trace.end[row, block]] == "miss"
            assert trace.lost[row, block].any() or not missed
            # Each level's tokens follow tokens of the level before.
            kept, parents = trace.kept[row, block], trace.parents[row, block]
            assert kept[0].tolist() == list(range(wide))
            for level in range(1, num_levels[block]):
                assert set(parents[kept[level]]) <= set(kept[level - 1])
            if block + 1 < calls:
                opens = trace.tokens[row, block + 1, :wide]
                np.testing.assert_array_equal(opens, trace.newest[row, block])


def test_nan_is_told():
    model, table, near = toy(0)
    nan = jnp.full_like(table, jnp.nan)
    found = speculative(model, nan, near, T5X, u=3, gamma=2)
    assert found.failed.all()
    assert found.steps.tolist() == [1] * len(INPUTS)
    assert speculative(model, table, nan, T5X, u=3, gamma=2).failed.all()


MUTANTS = {
    beam_mutants.DraftsOrder: T5X,
    beam_mutants.LeftOutOfPool: HUGGING_FACE,
    beam_mutants.LengthOfBlock: T5X,
    beam_mutants.SelectedFirst: T5X,
    beam_mutants.LateMiss: T5X,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mistakes_are_told_apart(mutant):
    config = MUTANTS[mutant]
    told = 0
    for seed in range(3):
        model, table, near = toy(seed)
        expected = plain(model, table, config)
        assert not differing(speculative(model, table, near, config, u=4, gamma=3), expected)
        found = speculative(model, table, near, config, u=4, gamma=3, kind=mutant)
        told += bool(differing(found, expected))
    assert told > 0


def test_a_stale_draft_costs_calls():
    model, table, _ = toy(0)
    found = speculative(model, table, table, T5X, u=3, gamma=1, kind=beam_mutants.StaleDraft)
    assert found.ends[:, ENDS.index("miss")].sum() > 0
    assert not differing(found, plain(model, table, T5X))
