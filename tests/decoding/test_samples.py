"""Samples of a text: each is what the text's row would be with other random numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import V, pair_of, texts
from scipy import stats
from slow import slow

import specdec
from specdec.decoding import loop as loops
from specdec.decoding import samples
from specdec.decoding.batches import make_batches
from specdec.decoding.engine import Engine
from specdec.measure import auto

FALSE_ALARM = 1e-6  # Seeds are fixed, so a pass stays a pass.
LIMIT, COUNT = 12, 3
TEXTS = texts(5, least=2)
WARM = specdec.SamplingConfig(1.0)
RULES = (specdec.NoRepeatNgram(2), specdec.RepetitionPenalty(1.3))


# Other drafts: test_crosses.py.
CASES = {
    "a stop": ("t5", "draft", {"gamma": 3, "stop_below": 0.3}),
    "siblings that may repeat": ("t5", "draft", {"tree": specdec.Tree((2, 1), independent=True)}),
    "merged": ("t5", "merged", {"tree": (1, 1)}),
    "hierarchical": ("t5", "hierarchical", {"gamma": 3}),
    "medusa": ("t5", "medusa", {"tree": (2, 1)}),
    "look-ahead": ("t5", "look-ahead", {"gamma": 2}),
    "gpt, copying in a tree": ("gpt", specdec.Copying(), {"tree": (3, 1)}),
}  # fmt: skip
QUICK = ("hierarchical", "look-ahead", "gpt, copying in a tree")


class RowsAlone(Engine):
    """Its rows are there several times, each with a sample's random numbers: nothing is shared."""

    def start(self, params, prompt, row_ids, limit, seed, **given):
        twin = jax.tree.map(lambda leaf: jnp.repeat(leaf, COUNT, axis=0), (prompt, row_ids))
        state = super().start(params, *twin, limit, seed, **given)
        others = [np.uint32(2**32 - 1), np.uint32(2**32 - 2)]
        own = jax.vmap(lambda key: jnp.stack([key, *(jax.random.fold_in(key, i) for i in others)]))
        keys = own(state.row_keys[::COUNT]).reshape(-1)
        return dataclasses.replace(state, row_keys=keys)


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in CASES])
def test_each_is_the_row_with_its_own_numbers(name, paths):
    """And they share what was encoded."""
    target, draft, options = CASES[name]
    pair = pair_of(paths, target, draft)
    # Exact: else rounding moves a probability, and with it a draw, now and then.
    given = dict(max_decode_len=LIMIT, sampling=WARM, seed=5, exact=True, rules=RULES, **options)
    decoder = pair.decoder(num_samples=COUNT, batch_size=2, **given)
    alone = RowsAlone(**vars(dataclasses.replace(decoder.engine, samples=1)))
    shapes, different = set(), 0
    for batch in make_batches(TEXTS, 2, pair.target.model):
        found = decoder.decode(batch)
        expected = jax.device_get(
            loops.decode(alone, *decoder.arguments(batch), output_bucket=decoder.output_bucket)
        )
        for index in np.flatnonzero(batch.row_ids >= 0):
            rows = slice(index * COUNT, (index + 1) * COUNT)
            np.testing.assert_array_equal(found.tokens[index], expected.tokens[rows])
            np.testing.assert_array_equal(found.num_tokens[index], expected.num_tokens[rows])
            different += len({tuple(row) for row in found.tokens[index]})
        state = decoder.engine.start(*decoder.arguments(batch), output_bucket=16)
        shapes |= {leaf.shape[0] for leaf in jax.tree.leaves(state.encoded)}
    assert shapes == (set() if target == "gpt" else {2})
    assert different > len(TEXTS)


def tokens_of(output):
    return [[sample.tokens.tolist() for sample in row] for row in output.samples]


def test_the_batch_does_not_matter(paths, monkeypatch):
    """The first sample is what there is without samples. Rows are refilled, and arrays grow."""
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)
    pair = pair_of(paths, "t5", "draft")
    given = dict(gamma=2, max_decode_len=2 * LIMIT, sampling=WARM, seed=9)
    alone, refilled, one = [
        tokens_of(pair.generate(TEXTS, num_samples=count, batch_size=size, **given))
        for count, size in ((COUNT, 1), (COUNT + 1, 2), (1, 5))
    ]
    assert max(len(tokens) for row in alone for tokens in row) > 16
    assert alone == [row[:COUNT] for row in refilled]
    assert one == [row[:1] for row in alone]


def test_what_generate_returns(paths):
    pair = pair_of(paths, "t5", "draft")
    given = dict(gamma=2, max_decode_len=LIMIT, sampling=WARM, top_log_probs=2, log_probs=True)
    out = pair.generate(TEXTS, num_samples=2, batch_size=2, trace=True, **given)
    assert out.stats.num_rows == 2 * len(TEXTS)
    assert out.stats.emitted == sum(len(sample.tokens) for row in out.samples for sample in row)
    for index, (first, second) in enumerate(out.samples):
        assert first.tokens is out.tokens[index]
        assert (first.ended, first.log_probs) == (out.ended[index], out.log_probs[index])
        assert first.blocks == out.traces[index]
        for sample in (first, second):
            assert sample.ended == ("eos" if sample.tokens[-1] == 1 else "limit")
            assert len(sample.log_probs) == len(sample.tokens) == len(sample.alternatives[0])
            kept = [len(b.accepted) + (b.correction is not None) for b in sample.blocks]
            assert sum(kept) == len(sample.tokens)


def test_a_time_that_is_over_ends_each(paths, monkeypatch):
    """The first batch has what there was, all others nothing."""
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)
    pair = pair_of(paths, "t5", "draft")
    given = dict(method="autoregressive", max_decode_len=LIMIT, sampling=WARM, num_samples=2)
    out = pair.generate(TEXTS, time_limit=1e-9, log_probs=True, **given)
    some, *others = [row for row in out.samples if len(row[0].tokens)], out.samples
    assert len(some) == 1
    assert all(0 < len(sample.tokens) <= 4 for sample in some[0])
    assert "time" in [sample.ended for sample in some[0]]
    rest = [row for row in others[0] if not len(row[0].tokens)]
    assert [[each.ended for each in row] for row in rest] == [["time"] * 2] * (len(TEXTS) - 1)
    assert all(each.log_probs.size == 0 for row in rest for each in row)


def first_tokens(pair, rows):
    """Of both samples of many rows of one text, [rows, 2]."""
    decoder = pair.decoder(
        num_samples=2, gamma=1, max_decode_len=2, sampling=WARM, batch_size=rows, seed=1
    )
    (batch,) = make_batches([TEXTS[0]] * rows, rows, pair.target.model)
    return decoder.decode(batch).tokens[:, :, 0]


def dependence(found):
    """The p-value of the two samples' first tokens being independent; rare ones are pooled."""
    common = np.argsort(-np.bincount(found.reshape(-1), minlength=V))[:5]
    kinds = np.array([np.flatnonzero(common == t)[0] if t in common else 5 for t in range(V)])
    table = np.zeros((6, 6))
    np.add.at(table, tuple(kinds[found].T), 1)
    return stats.chi2_contingency(table).pvalue


def test_samples_of_a_text_are_independent(paths, monkeypatch):
    pair = pair_of(paths, "t5", "draft")
    found = first_tokens(pair, 4000)
    assert dependence(found) > FALSE_ALARM

    def same(state, count):
        keys = jnp.repeat(state.row_keys, count)
        return dataclasses.replace(samples.repeated(state, count), row_keys=keys)

    monkeypatch.setattr("specdec.decoding.engine.sampled", same)
    jax.clear_caches()
    assert dependence(first_tokens(pair, 3999)) < FALSE_ALARM


def test_auto_chooses_for_as_many_rows(paths, monkeypatch):
    seen = []

    class Stop(Exception):
        pass

    def kind(target, draft, decoding):
        seen.append(decoding)
        raise Stop

    monkeypatch.setattr(auto, "DecodeSpace", kind)
    pair = pair_of(paths, "t5", "draft")
    with pytest.raises(Stop):
        pair.generate(TEXTS, gamma="auto", num_samples=3, sampling=WARM, batch_size=2)
    assert (seen[0].batch_size, seen[0].num_samples) == (6, 1)
