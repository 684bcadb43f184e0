"""Watches loops while their arrays change size: what has not been read must not be cut."""

import dataclasses

import jax
import numpy as np

from specdec.decoding import loop as loops
from specdec.models.cache import KVCache
from specdec.types import DecodeState


@dataclasses.dataclass
class Changes:
    """The changes of sizes that were seen, in order: "grew" and "shrank"."""

    seen: list

    def shrank_and_grew(self):
        """Whether arrays grew again after they had shrunk."""
        return "shrank" in self.seen and "grew" in self.seen[self.seen.index("shrank") :]


def watch(monkeypatch):
    """From here on, each state that is made smaller is compared with what it was before."""
    resized, changes = loops.resized, Changes([])

    def watched(loop, params, state, *given, output_bucket, trace):
        found = resized(loop, params, state, *given, output_bucket=output_bucket, trace=trace)
        pairs = list(zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True))
        if any(new.size > old.size for old, new in pairs):
            changes.seen.append("grew")
        if any(new.size < old.size for old, new in pairs):
            changes.seen.append("shrank")
            check_nothing_is_cut(loop, params, state, found, output_bucket)
        return found

    monkeypatch.setattr(loops, "resized", watched)
    return changes


def check_nothing_is_cut(loop, params, before, after, output_bucket):
    """What unread rows have produced is whole, and so is what their next blocks look back at.

    A row's result is read as soon as the row has ended, so all others are unread.
    """
    unread = ~np.asarray(loop.finished(before))
    size = 4 * output_bucket  # Of all arrays that a test has.
    found, expected = (
        jax.device_get(loop.result(params, state, size)) for state in (after, before)
    )
    assert_same(found, expected, unread)
    if isinstance(after, DecodeState):  # Beams share entries.
        goes_on = ~np.asarray(after.finished)
        caches = (after.cache, after.drafter_state)
        for cache in jax.tree.leaves(caches, is_leaf=lambda leaf: isinstance(leaf, KVCache)):
            if isinstance(cache, KVCache):
                assert np.all(np.asarray(cache.length)[goes_on] <= cache.max_len), (
                    "entries were cut"
                )


def assert_same(found, expected, rows):
    """Some rows of two results have the same tokens, counts and blocks, and close floats."""
    calls = np.asarray(expected.stats.target_calls)
    leaves = jax.tree_util.tree_leaves_with_path(found)
    for (path, new), old in zip(leaves, jax.tree.leaves(expected), strict=True):
        name, new, old = jax.tree_util.keystr(path), new[rows], old[rows]
        if "trace" in name:  # It has as many blocks as arrays have tokens; garbage is behind.
            most = int(np.max(calls[rows], initial=0))
            axis = calls.ndim
            assert new.shape[axis] >= most, f"{name} was cut"
            ran = np.arange(most) < calls[rows][..., None]
            kept = (slice(None),) * axis + (slice(most),)
            new, old = new[kept][ran], old[kept][ran]
        if np.issubdtype(old.dtype, np.floating):
            np.testing.assert_allclose(new, old, atol=1e-3, err_msg=f"{name} was cut")
        else:
            np.testing.assert_array_equal(new, old, err_msg=f"{name} was cut")
