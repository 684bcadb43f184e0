"""Loops that pause, move to larger arrays and take in other rows: tokens, counts and blocks are
those of each batch alone in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import pair_of, texts
from sizes import watch

import specdec
from specdec.core.compilation import num_programs
from specdec.decoding import loop as loops
from specdec.decoding import refilling
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import make_batches
from specdec.decoding.beam import BeamResult
from specdec.decoding.blocks import blocks_of
from specdec.decoding.engine import Engine
from specdec.types import SamplingConfig

LIMIT, ROWS = 32, 30
SAMPLED = SamplingConfig(1.0)
BEAM = specdec.BeamConfig(3, "huggingface", length_penalty=2.0)  # It favours long outputs.


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Rows outgrow the first arrays; what shrinks is watched."""
    monkeypatch.setattr(loops, "FIRST_BUCKET", 16)
    watch(monkeypatch)


def batches_of(pair, rows=ROWS, most=14):
    """The last one is not full. With more than 15 tokens there are two sizes of inputs."""
    ids = sorted(texts(rows, most=most), key=len)
    return list(make_batches(ids, 8, pair.target.model))


def alone(decoder, batch):
    """What a batch comes to in one program."""
    found = loops.decode(
        decoder.loop, *decoder.arguments(batch), output_bucket=decoder.output_bucket, trace=True
    )
    return jax.tree.map(np.asarray, found)


def shown(decoder, result, row):
    """All that there is to know of a row, and sums of its floats."""
    if isinstance(result, BeamResult):
        found = decoder.outputs(result, row)
        known = [result.levels[row].tolist(), result.ends[row].tolist(), found[0].blocks]
        return [*known, *(h.tokens.tolist() for h in found)], sum(h.score for h in found)
    stats = {name: leaf[row].tolist() for name, leaf in vars(result.stats).items()}
    sums = stats.pop("acceptance_prob_sum")
    return (result.tokens[row].tolist(), stats, blocks_of(result.trace, row)), sums


def check(decoder, batches):
    """Rows that were refilled are as in one program; they have many lengths."""
    lengths = set()
    for batch, result in decoder.decode_all(batches, trace=True):
        expected = alone(decoder, batch)
        for row in np.flatnonzero(batch.row_ids >= 0):
            (known, sums), (wanted, near) = (
                shown(decoder, each, row) for each in (result, expected)
            )
            assert known == wanted
            assert abs(sums - near) < 1e-3  # Sums over arrays of another size are rounded apart.
            lengths.add(int(result.stats.emitted[row]))
    assert min(lengths) <= 16 < max(lengths)  # Some outgrew the first arrays.


# test_crosses.py has other drafts, with rules, prefixes and samples.
CASES = {
    "copying": ("t5", specdec.Copying(), {"gamma": 3}),
    # What it guesses behind an EOS that is not accepted does not depend on the arrays' size.
    "hierarchical": ("t5", "hierarchical", {"gamma": 3}),
    "speculative beams": ("t5", "draft", {"method": "speculative_beam", "beam": BEAM, "gamma": 2}),
    "gpt, copying in a tree": ("gpt", specdec.Copying(), {"tree": (3, 1)}),
    "gpt, beams": ("gpt", "itself", {"method": "beam", "beam": BEAM}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_each_batch_alone(name, paths):
    target, draft, options = CASES[name]
    pair = pair_of(paths, target, draft)
    if "beam" in options:
        decoder = pair.searcher(max_decode_len=LIMIT, **options)
    else:
        decoder = pair.decoder(max_decode_len=LIMIT, sampling=SAMPLED, seed=5, **options)
    check(decoder, batches_of(pair))


def test_larger_inputs_join_smaller_ones(paths):
    pair = pair_of(paths, "t5", "draft")
    decoder = pair.decoder(max_decode_len=LIMIT, sampling=SAMPLED, gamma=3)
    batches = batches_of(pair, most=26)
    assert {batch.prompt.inputs.shape[1] for batch in batches} == {16, 32}
    check(decoder, batches)


def test_a_batch_moves_to_larger_arrays_by_itself(paths):
    """And limits that are less than the arrays, or more, cut the same outputs."""
    pair = pair_of(paths, "t5", "draft")
    decoder = pair.decoder(max_decode_len=LIMIT, sampling=SAMPLED, gamma=3)
    batch = batches_of(pair)[0]
    expected = alone(decoder, batch)
    for limit in (None, 15, 16, 17):
        found, most = decoder.decode(batch, limit=limit, trace=True), limit or LIMIT
        np.testing.assert_array_equal(found.num_tokens, np.minimum(expected.num_tokens, most))
        np.testing.assert_array_equal(found.tokens[:, :most], expected.tokens[:, :most])


def test_fewer_steps_and_programs(paths):
    """A loop program and a refill for each pair of buckets, and steps near to those needed."""
    pair = pair_of(paths, "t5", "draft")
    decoder = pair.decoder(max_decode_len=LIMIT, sampling=SAMPLED, method="autoregressive")
    batches = batches_of(pair, 200)
    before = num_programs()
    loop = refilling.Refilled(decoder, 8, trace=False)
    results = [result for _, result in loop.decode(batches)]
    calls = np.concatenate([result.stats.target_calls for result in results])
    separate = sum(int(np.max(result.stats.target_calls)) for result in results)
    needed = calls.sum() / 8
    assert loop.blocks < 1.2 * needed < separate
    # A loop for each of two sizes of outputs, and the start; to move there and back; no rows.
    assert num_programs() - before <= 2 + 1 + 2 + 1


class WrongPlaces(BatchDecoder):
    """Its loop takes the row behind one that has ended for the one that has."""

    @property
    def loop(self):
        return OffByOne(self.engine.target, self.engine.drafter, self.engine.verifier)


class OffByOne(Engine):
    def finished(self, state):
        return jnp.roll(state.finished, 1)


def test_a_row_in_the_place_of_one_that_goes_on_is_caught(paths):
    pair = pair_of(paths, "t5", specdec.Copying())
    decoder = pair.decoder(max_decode_len=LIMIT, sampling=SAMPLED, gamma=2)
    broken = WrongPlaces(**vars(decoder))
    wrong = total = 0
    found = zip(
        decoder.decode_all(batches_of(pair)), broken.decode_all(batches_of(pair)), strict=True
    )
    for (batch, result), (_, other) in found:
        known = batch.row_ids >= 0
        total += np.sum(known)
        wrong += np.sum(np.any(result.tokens != other.tokens, axis=1)[known])
    assert 0 < wrong <= total
