"""The cache itself; what models make of it is in test_contract.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models import cache as kv
from specdec.models.toy import ToyCache, ToyModel

CAPACITY = 9
LENGTH = np.array([2, 5])
PATH = np.array([[0, 2, 99, -7], [1, 2, 50, 3]])  # Behind what is kept anything may stand.
COUNT = np.array([2, 2])


@pytest.fixture
def entries():
    return jax.random.normal(jax.random.key(0), (2, 3, CAPACITY, 4))


def slots_kept():
    """For each row, the slots whose entries end up at 0..length + count - 1."""
    return [
        [*range(length), *(length + path[:count])]
        for length, path, count in zip(LENGTH, PATH, COUNT, strict=True)
    ]


@pytest.mark.parametrize("compiled", [False, True])
def test_filler_in_a_path_beyond_the_cache(entries, compiled):
    cache = kv.KVCache((entries,), (2 * entries,), jnp.asarray(LENGTH))
    commit = jax.jit(kv.commit) if compiled else kv.commit
    after = commit(cache, jnp.asarray(PATH), jnp.asarray(COUNT))
    np.testing.assert_array_equal(after.length, LENGTH + COUNT)
    for found, before in ((after.keys[0], entries), (after.values[0], 2 * entries)):
        assert np.isfinite(found).all()
        for row, slots in enumerate(slots_kept()):
            np.testing.assert_array_equal(
                found[row, :, : len(slots)], before[row][:, np.array(slots)]
            )


def test_filler_in_the_toys_path():
    tokens = jnp.arange(2 * CAPACITY).reshape(2, CAPACITY)
    after = ToyModel(3).commit(
        ToyCache(tokens, jnp.asarray(LENGTH)), jnp.asarray(PATH), jnp.asarray(COUNT)
    )
    assert ((after.tokens >= 0) & (after.tokens < 2 * CAPACITY)).all()
    for row, slots in enumerate(slots_kept()):
        np.testing.assert_array_equal(after.tokens[row, : len(slots)], tokens[row, np.array(slots)])


def test_rolled_back(entries):
    cache = kv.KVCache((entries,), (entries,), jnp.asarray(LENGTH))
    back = kv.commit(cache, None, jnp.array([-1, -3]))
    np.testing.assert_array_equal(back.length, [1, 2])
    np.testing.assert_array_equal(back.keys[0], entries)
