"""The two decode loops on tiny T5s: ends, counts, batches and compiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, prompt_of, ragged_inputs, random_params

from specdec.core.compilation import num_programs
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import decode as engine_decode
from specdec.drafters.base import DraftParams
from specdec.drafters.model import ModelDrafter
from specdec.models.toy import ToyModel
from specdec.models.transformer.model import TransformerModel
from specdec.models.transformer.network import Transformer
from specdec.types import SamplingConfig
from specdec.verifiers.token import TokenVerifier

GREEDY, SAMPLED = SamplingConfig(0.0), SamplingConfig(1.0)
V = 19
TARGET_SEED = 3  # Its rows end at many different lengths.


@functools.cache
def models():
    """(target, its parameters, draft, its parameters): two T5s that agree now and then."""
    target, draft = TransformerModel(TINY["v1.1"]), TransformerModel(TINY["v1.0"])
    return (
        target, target.pack(random_params(TINY["v1.1"], TARGET_SEED)),
        draft, draft.pack(random_params(TINY["v1.0"], 1)),
    )  # fmt: skip


def speculating(gamma, sampling, self_draft=False, verifier=None, stop_below=0.0):
    """An engine and its parameters; plain decoding for gamma = 0."""
    target, params, draft, draft_params = models()
    if self_draft:
        draft, draft_params = target, params
    if gamma == 0:
        return Engine(target), EngineParams(params, sampling.traced())
    drafter = ModelDrafter(draft, gamma, stop_below)
    drawn = DraftParams(draft_params, sampling.traced())
    engine = Engine(target, drafter, verifier or TokenVerifier())
    return engine, EngineParams(params, sampling.traced(), drawn)


def decode(inputs, *, gamma=3, sampling=GREEDY, limit=12, seed=0, row_ids=None, bucket=16,
           self_draft=False, verifier=None, stop_below=0.0):  # fmt: skip
    """Speculative when gamma > 0, else plain. Always traced: tests share programs."""
    row_ids = jnp.arange(inputs.shape[0]) if row_ids is None else jnp.asarray(row_ids)
    engine, params = speculating(gamma, sampling, self_draft, verifier, stop_below)
    return engine_decode(
        engine, params, prompt_of(engine.target, inputs), row_ids, limit, seed,
        output_bucket=bucket, trace=True,
    )  # fmt: skip


INPUTS = ragged_inputs(24, 8, V)


def test_greedy_equals_the_reference():
    plain, fast = decode(INPUTS, gamma=0), decode(INPUTS)
    np.testing.assert_array_equal(plain.tokens, fast.tokens)
    np.testing.assert_array_equal(plain.num_tokens, fast.num_tokens)
    lengths = set(np.asarray(plain.num_tokens).tolist())
    assert len(lengths) > 3, "rows should end at different places for this test to mean anything"


def test_the_reference_is_the_network():
    """Greedy decoding against argmax of the teacher-forced linen network."""
    target = models()[0]
    result = decode(INPUTS, gamma=0)
    inputs = jnp.pad(result.tokens[:, :-1], ((0, 0), (1, 0)))
    logits = Transformer(target.config).apply(
        {"params": random_params(TINY["v1.1"], TARGET_SEED)}, INPUTS, inputs
    )
    valid = np.arange(16) < np.asarray(result.num_tokens)[:, None]
    np.testing.assert_array_equal(
        np.where(valid, np.argmax(logits, -1), 0), np.where(valid, result.tokens, 0)
    )


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("limit", [1, 7])
def test_a_limit_cuts_the_same_decode_short(sampling, limit):
    long, short = (decode(INPUTS, sampling=sampling, limit=n) for n in (16, limit))
    for row in range(len(INPUTS)):
        count = min(int(long.num_tokens[row]), limit)
        assert int(short.num_tokens[row]) == count
        np.testing.assert_array_equal(short.tokens[row, :count], long.tokens[row, :count])
        assert not np.any(short.tokens[row, count:])


@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_row_does_not_depend_on_its_neighbours(gamma, sampling):
    options = dict(gamma=gamma, sampling=sampling, seed=7)
    together = decode(INPUTS, **options)
    order = np.random.default_rng(0).permutation(len(INPUTS))
    shuffled = decode(INPUTS[order], row_ids=order, **options)
    np.testing.assert_array_equal(shuffled.tokens, together.tokens[order])
    for name in ("target_calls", "accepted", "examined", "emitted"):
        np.testing.assert_array_equal(
            getattr(shuffled.stats, name), getattr(together.stats, name)[order]
        )
    # Alone, beside padding rows.
    for row in (0, 5):
        inputs, ids = alone(row)
        few = decode(inputs, row_ids=ids, **options)
        np.testing.assert_array_equal(few.tokens[2], together.tokens[row])
        assert few.num_tokens.tolist()[:2] == [0, 0]
        assert int(few.stats.emitted.sum()) == int(few.num_tokens[2])


def alone(row):
    """Inputs and ids of a batch of the same shape, whose third row is all there is in it."""
    ids = np.full(len(INPUTS), -1)
    ids[2] = row
    return jnp.asarray(INPUTS).at[2].set(INPUTS[row]), ids


def test_seeds_and_rows_differ():
    same = jnp.tile(INPUTS[:1], (len(INPUTS), 1))
    one, two = (decode(same, sampling=SAMPLED, seed=s) for s in (0, 1))
    assert len({tuple(row) for row in np.asarray(one.tokens).tolist()}) > 4
    assert not np.array_equal(one.tokens, two.tokens)


def test_eos_ends_a_row_wherever_it_falls_in_a_block():
    """With the target as its own draft blocks are accepted whole; EOS falls on all places."""
    inputs = ragged_inputs(200, 8, V, seed=3)
    result = decode(inputs, self_draft=True, sampling=SAMPLED)
    indices = set()
    for row in range(200):
        tokens = result.tokens[row, : int(result.num_tokens[row])].tolist()
        assert 1 not in tokens[:-1]
        if tokens[-1] == 1:
            indices.add((len(tokens) - 1) % 4)
    assert indices == {0, 1, 2, 3}
    assert int(result.stats.dropped.sum()) > 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_statistics_agree_with_the_trace(sampling):
    gamma, limit = 3, 10
    result = decode(INPUTS, gamma=gamma, sampling=sampling, limit=limit)
    counts, trace = result.stats, result.trace
    for row in range(len(INPUTS)):
        emitted = np.asarray(trace.num_emitted[row])
        blocks = int((emitted > 0).sum())
        assert np.all(emitted[:blocks] > 0)
        accepted = np.asarray(trace.num_accepted[row, :blocks])
        assert int(counts.target_calls[row]) == blocks
        made = np.asarray(trace.num_guesses[row, :blocks])
        assert int(counts.proposed[row]) == made.sum() == gamma * blocks
        assert int(counts.emitted[row]) == emitted.sum() == int(result.num_tokens[row])
        assert int(counts.accepted[row]) == accepted.sum()
        np.testing.assert_array_equal(
            counts.accepted_histogram[row], np.bincount(accepted, minlength=gamma + 1)
        )
        examined = np.minimum(np.minimum(accepted + 1, emitted[:blocks]), made)
        assert int(counts.examined[row]) == examined.sum()
        rebuilt = [
            token
            for block in range(blocks)
            for token in trace.tokens[row, block, : emitted[block]].tolist()
        ]
        assert rebuilt == result.tokens[row, : int(result.num_tokens[row])].tolist()
        for block in range(blocks):  # Accepted guesses are what was emitted.
            n = accepted[block]
            np.testing.assert_array_equal(
                trace.draft_tokens[row, block, :n], trace.tokens[row, block, :n]
            )


def test_a_draft_that_stops_in_doubt():
    """Greedy output is the reference's; a row stops alone, its neighbours guess on."""
    threshold = 0.15
    plain = decode(INPUTS, gamma=0)
    fast = decode(INPUTS, gamma=4, stop_below=threshold)
    np.testing.assert_array_equal(plain.tokens, fast.tokens)
    made = np.asarray(fast.trace.num_guesses)[np.asarray(fast.trace.num_emitted) > 0]
    assert set(made.tolist()) == {1, 2, 3, 4}
    for row in (0, 5):
        inputs, ids = alone(row)
        few = decode(inputs, gamma=4, stop_below=threshold, row_ids=ids)
        assert int(few.stats.target_calls[2]) == int(fast.stats.target_calls[row])
        assert int(few.stats.proposed[2]) == int(fast.stats.proposed[row])


def test_a_draft_that_stopped_knows_what_was_emitted():
    """With the target as its own draft every guess is right, wherever blocks end: had the draft
    forgotten or kept a wrong token, it would guess wrongly. Rows -1 only fill the batch."""
    row_ids = np.where(np.arange(len(INPUTS)) % 5 == 4, -1, np.arange(len(INPUTS)))
    result = decode(
        INPUTS, gamma=4, sampling=SAMPLED, stop_below=0.3, self_draft=True, row_ids=row_ids,
    )  # fmt: skip
    np.testing.assert_array_equal(result.stats.accepted, result.stats.examined)
    # A row that is known to be finished asks for no more draft steps.
    # (Each of its blocks is written over the one before.)
    assert np.asarray(result.trace.num_guesses)[row_ids < 0].max() == 1
    made = np.asarray(result.trace.num_guesses)[np.asarray(result.trace.num_emitted) > 0]
    assert set(made.tolist()) == {1, 2, 3, 4}


def test_one_compile_for_each_shape_and_topology():
    """New inputs, limits, seeds, rows and ways of sampling reuse the program; new buckets, gammas
    and methods do not, nor does argmax share one with sampling."""
    model = ToyModel(5)
    tables = jax.random.normal(jax.random.key(0), (2, 31, 5))

    def run(inputs, *, gamma=3, sampling=SAMPLED, bucket=32, limit=12, seed=0, row_ids=(0, 1)):
        drawn = DraftParams(tables[1], sampling.traced())
        engine_decode(
            Engine(model, ModelDrafter(model, gamma)),
            EngineParams(tables[0], sampling.traced(), drawn), prompt_of(model, inputs),
            jnp.asarray(row_ids), limit, seed, output_bucket=bucket,
        )  # fmt: skip

    run(INPUTS[:2])
    before = num_programs()
    for limit, seed in ((9, 1), (30, 2)):
        run(INPUTS[2:4], limit=limit, seed=seed, row_ids=(5, -1))
    for sampling in (SamplingConfig(0.3), SamplingConfig(2.0, 3), SamplingConfig(1.0, 0, 0.7)):
        run(INPUTS[:2], sampling=sampling)
    assert num_programs() == before
    run(INPUTS[:2], bucket=64)
    run(INPUTS[:2], gamma=2)
    run(INPUTS[:2], sampling=GREEDY)
    assert num_programs() == before + 3


def test_the_loop_is_its_step():
    """While-loop and step by step: what the oracle proves of the step holds for the loop."""
    model, gamma, limit = ToyModel(5), 2, 6
    table = jax.random.normal(jax.random.key(0), (31, 5)) * 2
    other = jax.random.normal(jax.random.key(1), (31, 5)) * 2
    prompt = model.prompt(jnp.arange(12).reshape(6, 2), jnp.full(6, 2))
    engine = Engine(model, ModelDrafter(model, gamma))
    params = EngineParams(table, SAMPLED.traced(), DraftParams(other, SAMPLED.traced()))
    arguments = params, prompt, jnp.arange(6), limit, 3
    whole = engine_decode(engine, *arguments, output_bucket=limit)
    state = engine.start(*arguments, output_bucket=limit)
    step = jax.jit(lambda state: engine.step(params, state)[0])
    while not bool(state.finished.all()):
        state = step(state)
    np.testing.assert_array_equal(whole.num_tokens, state.num_tokens)
    for row in range(6):
        n = int(state.num_tokens[row])
        np.testing.assert_array_equal(whole.tokens[row, :n], state.tokens[row, :n])
