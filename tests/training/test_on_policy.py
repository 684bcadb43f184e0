"""A draft's own outputs as its training data."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from distilling import distill_tiny, from_encoding
from tiny import TINY_GPT, changed, random_params

from specdec.checkpoints import architectures
from specdec.models.transformer.network import init_params
from specdec.training import distill, on_policy, teacher_forcing
from specdec.training.batching import Batches, BatchingOptions, TokenBatch, TokenPair
from specdec.training.checkpointing import load_params
from specdec.training.on_policy import OnPolicy, generator


def batches(count=40):
    rng = np.random.default_rng(0)
    pairs = [TokenPair(rng.integers(3, 19, 4).tolist(), [5, 6]) for _ in range(count)]
    return Batches(pairs, BatchingOptions(32, (8,)))


def test_a_share_of_the_batches_has_the_drafts_outputs(tiny_model, monkeypatch):
    def sevens(engine, params, ids, *_):
        return [np.array([7]) for _ in ids], None

    monkeypatch.setattr(on_policy, "decode_rows", sevens)
    params, batch = init_params(tiny_model, jax.random.key(1)), next(batches().from_step(0))
    generate = generator(tiny_model, OnPolicy(0.25), 3, (tiny_model, params))
    made = [generate(params, batch, step) for step in range(400)]
    own = [each for each in made if each is not batch]
    assert 70 <= len(own) <= 130  # 100 of 400; the seed is fixed.
    assert all(np.all(each.targets[:, 0] == 7) for each in own)


def greedy_along(config, params, batch):
    """Whether each target token is the likeliest one at its place."""
    logits = teacher_forcing.teacher_forced(architectures.network(config), params, batch)
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
    logits = teacher_forcing.teacher_forced(
        architectures.network(config), draft, made, encoding=encoding
    )
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
    tmp_path, data_directory, tiny_model, target_directory, validations, monkeypatch
):
    """At each step from those of the draft as it is then."""
    found = []

    def noted(*given):
        generate = generator(*given)

        def made(params, batch, step):
            found.append((step, float(jax.tree.leaves(params)[0].sum())))
            return generate(params, batch, step)

        return made

    monkeypatch.setattr(distill, "generator", noted)
    draft = from_encoding(changed(tiny_model, num_heads=1))
    given = (data_directory, draft, target_directory)
    loss = "negative_log_acceptance"
    distill_tiny(tmp_path / "own", *given, loss=loss, on_policy=OnPolicy(0.5))
    distill_tiny(tmp_path / "given", *given, loss=loss)
    first, last, _, other = validations
    assert last["alpha"] > first["alpha"] > 0
    assert last["loss"] != other["loss"]
    steps, sums = zip(*found, strict=True)
    assert steps == tuple(range(40))
    assert len(set(sums)) == 39  # The first step has a rate of 0.
    assert load_params(tmp_path / "own")[0] == draft
