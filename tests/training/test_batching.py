from __future__ import annotations

import itertools

import numpy as np
import pytest

from specdec.training.batching import Batches, BatchingOptions, TokenPair

OPTIONS = BatchingOptions(64, (8, 16, 32), (0.5, 0.25, 0.25), seed=5)


@pytest.fixture(scope="module")
def pairs():
    """Pair i's input is made of id 2 + 2i, its target of id 3 + 2i."""
    lengths = np.random.default_rng(0).integers(1, 12, size=(100, 2))
    return [TokenPair([2 + 2 * i] * a, [3 + 2 * i] * b) for i, (a, b) in enumerate(lengths)]


def rows(batch):
    return [(i, t) for i, t in zip(batch.inputs, batch.targets, strict=True) if i.any()]


def test_every_pair_once_an_epoch_whole_and_aligned(pairs):
    batches = Batches(pairs, OPTIONS)
    for epoch in range(3):
        seen = []
        for row, target in itertools.chain.from_iterable(map(rows, batches.epoch(epoch))):
            indices = [(key - 2) // 2 for key, _ in itertools.groupby(row[row > 1])]
            seen += indices
            for side, ids in enumerate((row, target)):
                wanted = [token for index in indices for token in pairs[index][side]]
                assert ids[: len(wanted) + 1].tolist() == [*wanted, 1]
                assert not ids[len(wanted) + 1 :].any()
        assert sorted(seen) == list(range(len(pairs)))


def test_sides_of_their_own_lengths(pairs):
    options = BatchingOptions(32, ((8, 4), 8, (16, 8), (12, 16)))
    seen = 0
    for batch in Batches(pairs, options).epoch(0):
        shape = (batch.inputs.shape[1], batch.targets.shape[1])
        assert shape in [(8, 4), (8, 8), (16, 8), (12, 16)]
        assert len(batch.inputs) == len(batch.targets) == 64 // sum(shape)
        for row, target in rows(batch):
            seen += 1
            fits = [
                s
                for s in options.shapes
                if np.count_nonzero(row) <= s[0] and np.count_nonzero(target) <= s[1]
            ]
            assert shape == fits[0]
    assert seen == len(pairs)


def test_a_batch_depends_on_the_step_alone(pairs):
    batches = Batches(pairs, OPTIONS)
    steps = list(itertools.islice(batches.from_step(0), 120))
    assert len(list(batches.epoch(0))) < 60  # So that resuming crosses epochs.
    for start in (0, 1, 50, 119):
        again = next(Batches(pairs, OPTIONS).from_step(start))
        np.testing.assert_array_equal(again.inputs, steps[start].inputs)
        np.testing.assert_array_equal(again.targets, steps[start].targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": (16, 8)}, "ascending"),
        ({"lengths": ((8, 16), 10)}, "ascending"),
        ({"tokens_per_batch": 8}, "less than one row of 128"),
        ({"join_weights": (0.0,)}, "shares"),
    ],
)
def test_options_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchingOptions(**arguments)


def test_long_and_missing_examples_are_refused():
    with pytest.raises(ValueError, match=r"1 example.* exceed 8 tokens.* number 2"):
        Batches([TokenPair([2], [3]), TokenPair([2] * 8, [3])], BatchingOptions(64, (8,)))
    with pytest.raises(ValueError, match="No examples"):
        Batches([], OPTIONS)


def test_what_stands_behind_inputs_and_fills_rows():
    """As of a vocabulary that puts two tokens, or none, behind a text; it fits a row exactly."""
    options = BatchingOptions(16, (4,))
    for ends in ((), (8, 9)):
        text = list(range(10, 14 - len(ends)))
        (batch,) = Batches([TokenPair(text, [5])], options, 1, 7, ends).epoch(0)
        assert batch.inputs[0].tolist() == [*text, *ends]
        assert batch.targets[0].tolist() == [5, 1, 7, 7]
        assert np.all(batch.inputs[1:] == 7)
        with pytest.raises(ValueError, match="exceed 4 tokens"):
            Batches([TokenPair([*text, 3], [5])], options, 1, 7, ends)
