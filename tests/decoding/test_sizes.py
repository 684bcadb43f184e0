"""Arrays that grow, shrink and grow again: what a row or a sample has produced is never cut."""

import functools

import jax
import jax.numpy as jnp
import pytest
from sizes import watch
from uneven import SAMPLED, ThreeKinds, assert_alike, texts, write

import specdec
from specdec.core import compilation
from specdec.decoding import loop as loops
from specdec.decoding import samples
from specdec.decoding.engine import Engine

COPYING = {
    "gamma": 8, "sampling": SAMPLED, "max_decode_len": 100, "rules": (ThreeKinds(8, 50, 75),),
}  # fmt: skip
KEPT = {"log_probs": True, "top_log_probs": 1, "trace": True}


@pytest.fixture(scope="module")
def pair(once):
    return specdec.load_pair(target=once("uneven", write) / "target", draft=specdec.Copying())


@pytest.fixture
def small_buckets(monkeypatch):
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)


@pytest.fixture
def own_programs():
    """What is patched is in no program of another test."""

    def forget():
        compilation._kept.clear()
        jax.clear_caches()

    forget()
    yield
    forget()


def found(pair, batch_size):
    """All of each sample of some texts."""
    out = pair.generate(texts(24), batch_size=batch_size, num_samples=3, **COPYING, **KEPT)
    return [vars(sample) for row in out.samples for sample in row]


@functools.cache
def expected(pair):
    """Of each text by itself, in one program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "FIRST_BUCKET", 128)
        return found(pair, 1)


def test_a_sample_that_has_ended_is_whole(pair, small_buckets, monkeypatch):
    """It waits for the text's other samples, while arrays shrink to what those need."""
    changes = watch(monkeypatch)
    assert_alike(found(pair, 2), expected(pair))
    assert changes.shrank_and_grew()


def needs_before(self, state):
    """As if samples that have ended needed nothing."""
    needed = jnp.minimum(state.num_tokens + 1, state.limit)
    return jnp.max(samples.by_text(jnp.where(state.finished, 1, needed), self.samples), axis=1)


def cuts_too_much(leaf, shape):
    """Smaller arrays lose half of what would fit."""
    if leaf.shape == shape:
        return leaf
    kept = [size // 2 if size < old else old for size, old in zip(shape, leaf.shape, strict=True)]
    return _filled(leaf[tuple(map(slice, kept))], shape)


def pads_in_front(leaf, shape):
    """What is there moves to the end of larger arrays."""
    if leaf.shape == shape:
        return leaf
    kept = leaf[tuple(map(slice, shape))]
    return jnp.pad(kept, [(size - old, 0) for size, old in zip(shape, kept.shape, strict=True)])


def keeps_the_end(leaf, shape):
    """Smaller arrays have what was behind."""
    if leaf.shape == shape:
        return leaf
    starts = [max(0, old - size) for size, old in zip(shape, leaf.shape, strict=True)]
    return _filled(leaf[tuple(slice(start, None) for start in starts)], shape)


def _filled(kept, shape):
    return jnp.pad(kept, [(0, size - old) for size, old in zip(shape, kept.shape, strict=True)])


MUTANTS = {
    "ended samples need nothing": (Engine, "needs", needs_before),
    "cuts too much": (loops, "_resized", cuts_too_much),
    "pads in front": (loops, "_resized", pads_in_front),
    "keeps the end": (loops, "_resized", keeps_the_end),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, pair, small_buckets, monkeypatch, own_programs):
    """By what comes out, whether or not anything watches."""
    right = expected(pair)
    monkeypatch.setattr(*MUTANTS[name])
    wrong = found(pair, 2)
    pairs = zip(wrong, right, strict=True)
    assert any(one["tokens"].tolist() != other["tokens"].tolist() for one, other in pairs)


def test_who_watches_sees_what_is_cut(pair, small_buckets, monkeypatch, own_programs):
    watch(monkeypatch)
    monkeypatch.setattr(*MUTANTS["cuts too much"])
    with pytest.raises(AssertionError, match="cut"):
        found(pair, 2)
