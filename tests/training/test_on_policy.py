"""A draft's own outputs as its training data."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
from distilling import distill_tiny, from_encoding
from tiny import TINY_GPT, changed, random_params

from specdec.checkpoints import architectures
from specdec.models.transformer.network import init_params
from specdec.training import distill, on_policy, teacher_forcing
from specdec.training.batching import Batches, BatchingOptions, TokenBatch, TokenPair
from specdec.training.checkpointing import load_params
from specdec.training.on_policy import OnPolicy, OnPolicyBatches, generator
from specdec.training.train import apply


def batches(count=40):
    rng = np.random.default_rng(0)
    pairs = [TokenPair(rng.integers(3, 19, 4).tolist(), [5, 6]) for _ in range(count)]
    return Batches(pairs, BatchingOptions(32, (8,)))


def marked(params, batch, step):
    """A batch whose targets are the parameters and the step that it was made with."""
    return TokenBatch(batch.inputs, np.full_like(batch.targets, 100 * params + step))


def numbers(source, step, current, count):
    return [b.targets[0, 0] for b in itertools.islice(source.from_step(step, current), count)]


def test_outputs_are_those_of_the_draft_at_the_last_refresh(tmp_path):
    ages = iter(range(1, 100))
    source = OnPolicyBatches(tmp_path, batches(), OnPolicy(refresh_every=3), marked, 0)
    found = numbers(source, 0, lambda: next(ages), 8)
    assert found == [100, 101, 102, 203, 204, 205, 306, 307]


def test_a_share_keeps_the_outputs_of_the_data(tmp_path):
    source = OnPolicyBatches(tmp_path, batches(), OnPolicy(0.25, 10), marked, 3)
    found = numbers(source, 0, lambda: 1, 400)
    own = [n for n, value in enumerate(found) if value == 100 + n]
    assert {value for n, value in enumerate(found) if n not in own} == {5}
    assert 70 <= len(own) <= 130  # 100 of 400; the seed is fixed.


def test_a_run_that_was_stopped_goes_on_with_the_same_outputs(tmp_path):
    options = OnPolicy(0.5, refresh_every=4)
    first = OnPolicyBatches(tmp_path, batches(), options, marked, 0)
    whole = list(itertools.islice(first.from_step(0, lambda: 1), 8))

    def never(*_):
        raise AssertionError("generated again")

    again = OnPolicyBatches(tmp_path, batches(), options, never, 0)
    for step in (0, 3, 6):
        for there, here in zip(whole[step:], again.from_step(step, never), strict=False):
            jax.tree.map(np.testing.assert_array_equal, here, there)


def greedy_along(config, params, batch):
    """Whether each target token is the likeliest one at its place."""
    logits = apply(architectures.network(config), params, batch)
    return np.argmax(logits, axis=-1) == batch.targets


def test_a_greedy_draft_generates_its_likeliest_tokens(tiny_model):
    """Teacher forcing along the outputs finds each token the likeliest."""
    target = changed(tiny_model, dtype="float32")
    params = init_params(target, jax.random.key(0))
    config = from_encoding(target)
    draft = init_params(config, jax.random.key(1))
    batch = next(batches().from_step(0))
    made = generator(config, OnPolicy(temperature=0), 0, (target, params))(draft, batch, 0)
    np.testing.assert_array_equal(made.inputs, batch.inputs)
    network = architectures.network(target)
    encoding = network.apply({"params": params}, batch.inputs, method="encode")
    logits = apply(architectures.network(config), draft, made, encoding=encoding)
    written = made.targets != 0
    assert written.sum() > 8
    likeliest = np.argmax(logits, axis=-1)
    assert (likeliest == made.targets)[written].mean() > 0.99  # Ties are rounded differently.
    assert not np.array_equal(made.targets, batch.targets)


def test_a_gpt_continues_the_prompts_of_a_batch():
    config = dataclasses.replace(TINY_GPT["gpt"], dtype="float32")
    params = random_params(config, 4)
    pairs = [([3, 4, 5, 6], [7, 8]), ([9, 10], [11, 12, 13])]
    rows = [teacher_forcing.training_pair(config, *pair) for pair in pairs]
    batch = TokenBatch(*(np.zeros((3, 12), np.int32) for _ in range(2)))
    for row, sides in enumerate(rows):
        for side, ids in zip(batch, sides, strict=True):
            side[row, : len(ids) + 1] = [*ids, config.eos_id]
    found = teacher_forcing.prompts(config, *batch)
    assert found == [[3, 4, 5, 6], [9, 10]]
    made = generator(config, OnPolicy(temperature=0), 0, (config, params))(params, batch, 0)
    for row, (text, _) in enumerate(pairs):
        size = len(text)
        assert made.inputs[row, :size].tolist() == text
        np.testing.assert_array_equal(made.targets[row, : size - 1], 0)
        np.testing.assert_array_equal(made.inputs[row, size:], made.targets[row, size - 1 : -1])
    written = made.targets != config.pad_id
    assert written.sum() > 8
    assert not written[2].any()  # A spare row.
    assert greedy_along(config, params, made)[written].all()


def test_two_outputs_of_a_sampled_draft_differ_by_step_and_row(tiny_model):
    config = changed(tiny_model, dtype="float32")
    draft = init_params(config, jax.random.key(1))
    batch = TokenBatch(*(np.tile(side[:1], (4, 1)) for side in next(batches().from_step(0))))
    generate = generator(config, OnPolicy(), 0, (config, draft))
    outputs = [tuple(row) for step in (0, 1) for row in generate(draft, batch, step).targets]
    assert len(set(outputs)) == len(outputs)


def test_a_draft_learns_from_its_own_outputs(
    tmp_path, data_directory, tiny_model, target_directory, validations
):
    results = validations(distill)
    draft = from_encoding(changed(tiny_model, num_heads=1))
    distill_tiny(
        tmp_path, data_directory, draft, target_directory, loss="negative_log_acceptance",
        on_policy=OnPolicy(0.5, refresh_every=10),
    )  # fmt: skip
    first, last = results
    assert last["alpha"] > first["alpha"] > 0
    kept = sorted(path.name for path in (tmp_path / on_policy.DIRECTORY).iterdir())
    assert kept == ["0.npz", "10.npz", "20.npz", "30.npz"]
    assert load_params(tmp_path)[0] == draft
