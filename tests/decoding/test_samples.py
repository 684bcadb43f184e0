"""Samples of a text: each is what the text's row would be with other random numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from slow import slow
from tiny import TINY, TINY_GPT, random_params

import specdec
from specdec.checkpoints.heads import init_params, save_heads
from specdec.checkpoints.huggingface import save_huggingface
from specdec.decoding import loop as loops
from specdec.decoding import samples
from specdec.decoding.batches import make_batches
from specdec.decoding.engine import Engine
from specdec.measure import auto
from specdec.models.eagle.config import EagleConfig
from specdec.models.heads.network import HeadsConfig
from specdec.models.look_ahead.model import LookAheadConfig

FALSE_ALARM = 1e-6  # Seeds are fixed, so a pass stays a pass.
V, LIMIT, COUNT = 19, 12, 3
WARM = specdec.SamplingConfig(1.0)
RULES = (specdec.NoRepeatNgram(2), specdec.RepetitionPenalty(1.3))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Directories of tiny checkpoints by name."""
    root, found = tmp_path_factory.mktemp("checkpoints"), {}
    t5, width = TINY["v1.1"], TINY["v1.1"].d_model
    made = {"t5": (t5, 3), "draft": (TINY["v1.0"], 1), "gpt": (TINY_GPT["gpt"], 3)}
    for name, (config, seed) in made.items():
        params = random_params(config, seed)
        found[name] = root / name
        save_huggingface(found[name], config, jax.device_get(params))
    heads = {
        "medusa": HeadsConfig("medusa", 2, width), "eagle": EagleConfig(width, 8, 2, 4, 16, True),
        "look-ahead": LookAheadConfig(2, width),
    }  # fmt: skip
    target = jax.device_get(random_params(t5, 3))
    for name, shape in heads.items():
        found[name] = root / name
        save_heads(found[name], shape, init_params(shape, jax.random.key(0)), target)
    return found


def texts(count=5):
    generator = np.random.default_rng(0)
    return [
        np.array([*generator.integers(2, V, size), 1], np.int32)
        for size in generator.integers(2, 14, count)
    ]


CASES = {
    "plain": ("t5", "draft", {"method": "autoregressive"}),
    "chain": ("t5", "draft", {"gamma": 3}),
    "a stop": ("t5", "draft", {"gamma": 3, "stop_below": 0.3}),
    "tree": ("t5", "draft", {"tree": (2, 2)}),
    "siblings that may repeat": ("t5", "draft", {"tree": specdec.Tree((2, 1), independent=True)}),
    "best-first": ("t5", "draft", {"tree": specdec.Tree(nodes=6, depth=3, siblings=2)}),
    "copying": ("t5", specdec.Copying(), {"gamma": 3}),
    "its copy in few bits": ("t5", specdec.Quantized(), {"gamma": 3}),
    "random": ("t5", specdec.Random(), {"gamma": 2}),
    "merged": ("t5", "merged", {"tree": (1, 1)}),
    "hierarchical": ("t5", "hierarchical", {"gamma": 3}),
    "medusa": ("t5", "medusa", {"tree": (2, 1)}),
    "eagle": ("t5", "eagle", {"tree": (2, 1)}),
    "look-ahead": ("t5", "look-ahead", {"gamma": 2}),
    "gpt": ("gpt", "gpt", {"gamma": 3}),
    "gpt, copying in a tree": ("gpt", specdec.Copying(), {"tree": (3, 1)}),
}  # fmt: skip
QUICK = ("hierarchical", "gpt, copying in a tree")


def pair_of(paths, target, draft):
    draft_path = str(paths["draft"])
    made = {
        "merged": specdec.Merged((draft_path, specdec.Copying())),
        "hierarchical": specdec.Hierarchical(draft_path, specdec.Copying()),
        **{name: specdec.Heads(str(paths[name])) for name in ("medusa", "eagle", "look-ahead")},
        **{name: str(paths[name]) for name in ("draft", "gpt")},
    }
    return specdec.load_pair(
        target=paths[target], draft=made[draft] if isinstance(draft, str) else draft
    )


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
    given = dict(max_decode_len=LIMIT, sampling=WARM, seed=5, rules=RULES, **options)
    decoder = pair.decoder(num_samples=COUNT, batch_size=2, **given)
    alone = RowsAlone(**vars(dataclasses.replace(decoder.engine, samples=1)))
    shapes, different = set(), 0
    for batch in make_batches(texts(), 2, pair.target.model):
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
    assert different > len(texts())


def tokens_of(output):
    return [[sample.tokens.tolist() for sample in row] for row in output.samples]


def test_the_batch_does_not_matter(paths, monkeypatch):
    """The first sample is what there is without samples. Rows are refilled, and arrays grow."""
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)
    pair = pair_of(paths, "t5", "draft")
    given = dict(gamma=2, max_decode_len=2 * LIMIT, sampling=WARM, seed=9)
    alone, refilled, one = [
        tokens_of(pair.generate(texts(), num_samples=count, batch_size=size, **given))
        for count, size in ((COUNT, 1), (COUNT + 1, 2), (1, 5))
    ]
    assert max(len(tokens) for row in alone for tokens in row) > 16
    assert alone == [row[:COUNT] for row in refilled]
    assert one == [row[:1] for row in alone]


def test_what_generate_returns(paths):
    pair = pair_of(paths, "t5", "draft")
    given = dict(gamma=2, max_decode_len=LIMIT, sampling=WARM, top_log_probs=2, log_probs=True)
    out = pair.generate(texts(), num_samples=2, batch_size=2, trace=True, **given)
    assert out.stats.num_rows == 2 * len(texts())
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
    out = pair.generate(texts(), time_limit=1e-9, log_probs=True, **given)
    some, *others = [row for row in out.samples if len(row[0].tokens)], out.samples
    assert len(some) == 1
    assert all(0 < len(sample.tokens) <= 4 for sample in some[0])
    assert "time" in [sample.ended for sample in some[0]]
    rest = [row for row in others[0] if not len(row[0].tokens)]
    assert [[each.ended for each in row] for row in rest] == [["time"] * 2] * (len(texts()) - 1)
    assert all(each.log_probs.size == 0 for row in rest for each in row)


def first_tokens(pair, rows):
    """Of both samples of many rows of one text, [rows, 2]."""
    decoder = pair.decoder(
        num_samples=2, gamma=1, max_decode_len=2, sampling=WARM, batch_size=rows, seed=1
    )
    (batch,) = make_batches([texts()[0]] * rows, rows, pair.target.model)
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
        pair.generate(texts(), gamma="auto", num_samples=3, sampling=WARM, batch_size=2)
    assert (seen[0].batch_size, seen[0].num_samples) == (6, 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"num_samples": 0}, "num_samples must be at least 1"),
     ({"num_samples": 2}, "at temperature 0 all samples are the same: give sampling="),
     ({"num_samples": 2, "method": "beam"}, "all samples are the same: give num_return")],
)  # fmt: skip
def test_bad_options(options, told):
    with pytest.raises(ValueError, match=told):
        specdec.Decoding(**options)


def test_streams_have_one(paths):
    pair = pair_of(paths, "t5", "draft")
    with pytest.raises(ValueError, match="num_samples = 1"):
        next(pair.stream(texts()[0], num_samples=2, sampling=WARM))
