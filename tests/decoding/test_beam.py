"""Beam search on tiny models: the true best, greedy at width 1, rows apart, what ends a row."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.decoding import beam_rules
from specdec.decoding.beam import BeamLoop
from specdec.decoding.beam_blocks import BeamEngine
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode
from specdec.models.toy import ToyModel
from specdec.models.transformer.model import TransformerModel
from specdec.types import SamplingConfig

V, BUCKET, EOS = 19, 16, 1
INPUTS = ragged_inputs(12, 8, V)
T5X, HUGGING_FACE = BeamConfig(4), BeamConfig(4, "huggingface")


@functools.cache
def t5():
    model = TransformerModel(TINY["v1.1"])
    return model, model.pack(random_params(TINY["v1.1"], 3))


def search(model, params, config, inputs, limit=12, row_ids=None, bucket=BUCKET):
    """The n-best lists as NumPy arrays."""
    result = decode(
        BeamLoop(BeamEngine(model, config.num_beams)), (config.traced(bucket), params, ()),
        prompt_of(model, inputs), np.arange(len(inputs)) if row_ids is None else row_ids, limit, 0,
        output_bucket=bucket,
    )  # fmt: skip
    return jax.tree.map(np.asarray, result)


def lists(result, row):
    """[(tokens, score), ...] of a row, best first."""
    return [
        (tuple(tokens[:count].tolist()), float(score))
        for tokens, count, score in zip(
            result.tokens[row], result.num_tokens[row], result.scores[row], strict=True
        )
        if count
    ]


def test_one_beam_is_greedy_decoding():
    model, params = t5()
    greedy = decode(
        Engine(model), EngineParams(params, SamplingConfig(0.0).traced()), prompt_of(model, INPUTS),
        np.arange(len(INPUTS)), 12, 0, output_bucket=BUCKET,
    )  # fmt: skip
    found = search(model, params, BeamConfig(1, "huggingface"), INPUTS)
    np.testing.assert_array_equal(found.tokens[:, 0], greedy.tokens)
    np.testing.assert_array_equal(found.num_tokens[:, 0], greedy.num_tokens)


def toy(contexts=7, vocab=4, seed=0):
    table = 2 * np.random.default_rng(seed).normal(size=(contexts, vocab)).astype(np.float32)
    return ToyModel(vocab), jnp.asarray(table)


def hypotheses(table, hashed, limit):
    """{tokens: log p} of all outputs that end with EOS or are cut off at the limit, in float64."""
    table = np.asarray(table, np.float64)
    distributions = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(limit):
        grown = {}
        for tokens, log_prob in open_.items():
            past = (0, *tokens)  # After the start token.
            at = sum((token + 1) * (3 * index + 1) for index, token in enumerate(past))
            for token, more in enumerate(distributions[(hashed + at) % len(distributions)]):
                whole = found if token == EOS else grown
                whole[(*tokens, token)] = log_prob + more
        open_ = grown
    return found | open_


PENALTIES = [
    *(BeamConfig(64, "t5x", alpha=alpha) for alpha in (0.0, 0.6, 2.0)),
    *(BeamConfig(64, "huggingface", length_penalty=p) for p in (-1.0, 0.0, 2.0)),
    BeamConfig(64, "huggingface", length_penalty=2.0, early_stopping="never"),
]


@pytest.mark.parametrize("config", PENALTIES, ids=str)
def test_beams_as_many_as_there_are_outputs_find_the_best(config):
    """Against all outputs of up to four tokens. T5X's rule has those that end, if any does."""
    limit = 4
    for seed in range(2):
        model, table = toy(seed=seed)
        inputs = np.array([[2, 3, 1], [3, 1, 0], [2, 1, 0]])
        result = search(model, table, config, inputs, limit)
        for row, tokens in enumerate(inputs):
            hashed = sum(t * (index + 1) for index, t in enumerate(tokens) if t)
            divided = config.traced(BUCKET).penalties
            scored = {
                tokens: log_prob / divided[len(tokens)]
                for tokens, log_prob in hypotheses(table, hashed, limit).items()
                if config.rule == "huggingface" or tokens[-1] == EOS
            }
            expected = sorted(scored, key=scored.__getitem__, reverse=True)
            found = lists(result, row)
            assert found[0][0] == expected[0]
            for tokens, score in found:
                assert score == pytest.approx(scored[tokens], abs=1e-4)
            if config.early_stopping is None:  # All that end: no row stops while one may come.
                shown = expected[: config.num_beams]
                assert [tokens for tokens, _ in found] == shown


@pytest.mark.parametrize("config", [T5X, HUGGING_FACE], ids=["t5x", "huggingface"])
def test_a_row_does_not_depend_on_its_neighbours(config):
    model, params = t5()
    together = search(model, params, config, INPUTS)
    assert len(set(together.num_tokens[:, 0].tolist())) > 2
    if config.rule == "t5x":
        assert len(set(together.steps.tolist())) > 2, "rows should be done at different times"
    order = np.random.default_rng(0).permutation(len(INPUTS))
    shuffled = search(model, params, config, INPUTS[order])
    for row in range(len(INPUTS)):
        assert lists(shuffled, row) == lists(together, order[row])
    ids = np.full(len(INPUTS), -1)
    ids[2] = 0
    alone = search(model, params, config, jnp.asarray(INPUTS).at[2].set(INPUTS[5]), row_ids=ids)
    assert lists(alone, 2) == lists(together, 5)
    assert not alone.num_tokens[:2].any()
    assert alone.steps.tolist() == [0, 0, together.steps[5], *[0] * 9]


def rows(count):
    """A prompt of as many rows."""
    return ToyModel(V).prompt(np.zeros((count, 1), np.int32), np.ones(count, np.int32))


def test_equal_scores_come_in_the_order_of_parents_and_tokens():
    rules, ends = T5X.traced(BUCKET), (EOS,)
    state = beam_rules.initial_state(rules, rows(1), 8, BUCKET, 0)
    flat = jnp.zeros((1, 4, V))
    for expected_parents, expected in (([0] * 4, [0, 2, 3, 4]), ([0] * 4, [0, 2, 3, 4])):
        best = beam_rules.continuations(flat, rules.num_candidates(ends), (), ())
        state, parents, tokens = beam_rules.step(rules, ends, state, best)
        assert parents[0].tolist() == expected_parents
        assert tokens[0].tolist() == expected
    assert state.live_tokens[0, :, :2].tolist() == [[0, 0], [0, 2], [0, 3], [0, 4]]
    # One token and EOS, then two and EOS: of equal log p the longer one is divided by more.
    assert state.pool_lengths[0].tolist() == [1, 2, 0, 0]


def test_nothing_moves_in_a_finished_row():
    rules, ends = T5X.traced(BUCKET), (EOS,)
    state = beam_rules.initial_state(rules, rows(2), 3, BUCKET, 0)
    logits = jax.random.normal(jax.random.key(0), (2, 4, V))
    for _ in range(3):
        best = beam_rules.continuations(logits, rules.num_candidates(ends), (), ())
        state, _, _ = beam_rules.step(rules, ends, state, best)
    assert state.finished.all()
    after, parents, _ = beam_rules.step(rules, ends, state, best)
    assert parents.tolist() == [[0, 1, 2, 3]] * 2
    jax.tree.map(np.testing.assert_array_equal, after, state)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"rule": "google"}, "rule must be 't5x' or 'huggingface', got 'google'"),
        ({"alpha": -1.0}, "alpha must be finite and >= 0, got -1.0"),
        ({"length_penalty": 1.0}, "length_penalty belongs to rule='huggingface'"),
        ({"rule": "huggingface", "alpha": 0.6}, "alpha belongs to rule='t5x'"),
        ({"rule": "huggingface", "early_stopping": "always"}, 'False, True or "never"'),
    ],
)
def test_a_config_says_what_is_wrong(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        BeamConfig(**arguments)
