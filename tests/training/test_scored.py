"""A target's distributions, computed once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.training import scored as training_scored
from specdec.training.batching import Batches, BatchingOptions, TokenPair
from specdec.training.scored import ScoredBatches

VOCAB, TOP = 11, 3


def batches():
    rng = np.random.default_rng(0)
    pairs = [
        TokenPair(*(rng.integers(2, VOCAB, n).tolist() for n in rng.integers(1, 7, 2)))
        for _ in range(40)
    ]
    return Batches(pairs, BatchingOptions(32, (4, 8), (1.0, 1.0)))


def log_probs(params, batch):
    """Distributions that depend on the batch and the place, as a table's rows do."""
    indices = jnp.arange(batch.targets.size).reshape(batch.targets.shape)
    return jax.nn.log_softmax(params[(batch.targets * 7 + indices) % len(params)])


@pytest.fixture
def params():
    return jax.random.normal(jax.random.key(0), (29, VOCAB)) * 3


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(training_scored, "TOP", TOP)


def scored(directory, params, epochs=2, function=log_probs):
    return ScoredBatches(directory, batches(), epochs, lambda *a: (function(*a), None), params)


def test_the_most_probable_tokens_and_their_probabilities_are_kept(tmp_path, params):
    for batch in itertools.islice(scored(tmp_path, params).from_step(0), 5):
        probs = np.exp(np.asarray(log_probs(params, batch)))
        order = np.argsort(-probs, axis=-1)[..., :TOP]
        np.testing.assert_array_equal(batch.tokens, order)
        np.testing.assert_allclose(
            batch.probs, np.take_along_axis(probs, order, -1), rtol=1e-3, atol=1e-7
        )


def key(batch):
    return batch.inputs.tobytes() + batch.targets.tobytes()


def test_a_pass_has_every_batch_once_and_each_pass_another_order(tmp_path, params):
    epochs = [key(batch) for epoch in (0, 1) for batch in batches().epoch(epoch)]
    count = len(epochs)
    seen = [key(b) for b in itertools.islice(scored(tmp_path, params).from_step(0), 2 * count)]
    first, second = seen[:count], seen[count:]
    assert sorted(first) == sorted(second) == sorted(epochs)
    assert first != second


def test_a_batch_depends_on_its_step_only(tmp_path, params):
    source = scored(tmp_path, params)
    whole = list(itertools.islice(source.from_step(0), 60))
    for step in (1, 17, 41):
        again = next(source.from_step(step))
        for a, b in zip(again, whole[step], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_resumed_run_reads_what_was_scored(tmp_path, params):
    first = next(scored(tmp_path, params).from_step(3))

    def never(params, batch):
        raise AssertionError("scored again")

    again = next(scored(tmp_path, params, function=never).from_step(3))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.probs, again.probs)


def test_a_run_stopped_while_scoring_goes_on_with_it(tmp_path, params):
    scored(tmp_path, params)
    files = sorted(tmp_path.glob("scored/*.safetensors"))
    content = [path.read_bytes() for path in files]
    files[3].unlink()
    before = [path.stat().st_mtime_ns for path in files if path.exists()]
    scored(tmp_path, params)
    assert [path.read_bytes() for path in files] == content
    assert [path.stat().st_mtime_ns for path in files if path != files[3]] == before
    files[0].write_bytes(b"{")
    with pytest.raises(ValueError, match=r"0.safetensors is damaged .* scores the batch again"):
        list(itertools.islice(scored(tmp_path, params).from_step(0), len(files)))


def test_ids_of_a_large_vocabulary_are_kept(tmp_path):
    """mT5 has 250,112."""
    params = jnp.zeros((1, 250_112)).at[0, 250_000].set(9.0)
    batch = next(scored(tmp_path, params, epochs=1).from_step(0))
    assert np.all(batch.tokens[..., 0] == 250_000)
