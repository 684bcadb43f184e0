import dataclasses
import types

import numpy as np
import pytest

from specdec.core.stats import RunStats
from specdec.measure import timing
from specdec.measure.speed import predict, summarize
from specdec.measure.timing import Spread, Timed, medians, time_in_turns

STATS = RunStats(
    gamma=2, num_rows=1, target_calls=5, proposed=7, examined=6, accepted=3, emitted=8, dropped=0,
    accepted_histogram=(3, 1, 1), accepted_by_rank=(3,), acceptance_prob_sum=3.0,
)  # fmt: skip


def timed(start, block, calls, *, batches=1, tokens=1000, scale=1.0, **counts):
    """Decodes that take so many seconds to start and for a block; counts are those of STATS."""
    counts = dataclasses.asdict(STATS) | counts | {"target_calls": calls, "emitted": tokens}
    counts = {name: np.array([value]) for name, value in counts.items()}
    empty = {name: 0 * value for name, value in counts.items()}
    results = [types.SimpleNamespace(stats=types.SimpleNamespace(**counts))]
    empty["target_calls"] = np.array([0])
    results += [types.SimpleNamespace(stats=types.SimpleNamespace(**empty))] * (batches - 1)
    seconds, starts = batches * start + calls * block, batches * (start + block)
    return Timed(scale * seconds, scale * starts, tuple(results))


def repetition(scale=1.0, calls=100, batches=1, **counts):
    """Ten seconds of plain decoding, one of it encoding; a block takes 1.4 of its steps."""
    return {
        "autoregressive": timed(1 / batches, 0.010, 900, batches=batches, scale=scale),
        "speculative": timed(1.5 / batches, 0.014, calls, batches=batches, scale=scale, **counts),
        "without a draft": timed(1 / batches, 0.012, 800, batches=batches, scale=scale),
    }


def test_summary_of_one_repetition():
    speed = summarize([repetition(batches=4)], 2)
    assert speed.ms_per_token["autoregressive"].median == pytest.approx(10.0)
    assert speed.ms_per_token["speculative"].median == pytest.approx(2.9)
    assert set(speed.ms_per_token) == {"autoregressive", "speculative"}
    assert speed.encode_ms["target"].median == pytest.approx(250.0)
    assert speed.encode_ms["draft"].median == pytest.approx(125.0)
    assert speed.decoder_ms.median == pytest.approx(9000 / 4)
    assert speed.measured_speedup.median == pytest.approx(10 / 2.9)
    # Encoders: 1 s of the plain decode, 1.5 s of the speculative one.
    assert speed.measured_speedup_decoder.median == pytest.approx(9 / 1.4)
    assert speed.cost_ratio.median == pytest.approx(0.1)
    assert speed.verify_ratio.median == pytest.approx(1.2)


def test_ratios_are_taken_within_a_repetition():
    """A machine that slows down for a while slows both methods, and changes no ratio."""
    fast = Timed(2.5, 1.514, repetition()["speculative"].results)
    repetitions = [repetition(1.0), repetition(5.0), repetition(2.0) | {"speculative": fast}]
    speed = summarize(repetitions, 2)
    assert speed.measured_speedup.median == pytest.approx(10 / 2.9)
    assert speed.measured_speedup.low == pytest.approx(10 / 2.9)
    assert speed.measured_speedup.high == pytest.approx(20 / 2.5)
    spread = dataclasses.astuple(speed.ms_per_token["autoregressive"])
    assert spread == pytest.approx((20.0, 10.0, 50.0))


def test_methods_that_emit_different_texts_are_compared_by_the_token():
    fewer = repetition() | {"speculative": timed(1.5, 0.014, 100, tokens=500)}
    assert summarize([fewer], 2).measured_speedup.median == pytest.approx(10 / 2.9 / 2)


def test_prediction():
    speed = summarize([repetition(proposed=150)], 2)
    found = predict(STATS, speed)
    assert found["predicted_speedup"] == pytest.approx(1.75 / (2 * 0.1 + 1.2))
    assert found["predicted_speedup_thm38"] == pytest.approx(1.75 / (2 * 0.1 + 1))
    whole = 10 / (1 + 0.5 + 9 / found["predicted_speedup"])
    assert found["predicted_speedup_whole"] == pytest.approx(whole)
    # Of the texts that were timed: 100 calls, 150 guesses made.
    assert found["predicted_speedup_counted"] == pytest.approx(1000 / (150 * 0.1 + 100 * 1.2))


def test_decodes_of_one_block_have_no_start():
    one = timed(0.0, 2.0, 1)
    assert (one.block, one.start, one.blocks) == (2.0, 0.0, 2.0)


class Lasting:
    """A decoder that takes so many seconds a token; batches are numbers of tokens."""

    def __init__(self, seconds, clock, calls, name):
        self.seconds, self.clock, self.calls, self.name = seconds, clock, calls, name

    def decode(self, batch, *, limit=None):
        tokens = min(batch.shape, limit or batch.shape)
        self.clock[0] += tokens * self.seconds
        self.calls.append((self.name, batch.shape, limit))
        counts = {"emitted": np.array([tokens]), "target_calls": np.array([tokens])}
        return types.SimpleNamespace(stats=types.SimpleNamespace(**counts))


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    fake = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(timing, "time", fake)
    return now


BATCHES = [types.SimpleNamespace(shape=size) for size in (5, 5, 10)]


def test_turns_change_their_order_and_each_shape_is_warmed_up_once(clock):
    calls, passed = [], []
    decoders = {"a": Lasting(1.0, clock, calls, "a"), "b": Lasting(0.5, clock, calls, "b")}
    both = time_in_turns(decoders, BATCHES, 2, starts=True, passed=lambda: passed.append(1))
    assert calls[:4] == [("a", 5, None), ("a", 10, None), ("b", 5, None), ("b", 10, None)]
    first = [("a", 5, None), ("a", 5, 1), ("b", 5, None), ("b", 5, 1)]
    assert calls[4:8] == first
    assert calls[8:12] == first[::-1]
    assert len(passed) == 6
    for times in both:
        assert (times["a"].seconds, times["a"].starts) == (20.0, 3.0)
        assert (times["b"].seconds, times["b"].starts) == (10.0, 1.5)
    assert [len(each.results) for each in both[0].values()] == [3, 3]


@pytest.mark.parametrize(
    ("seconds", "batches", "repetitions"), [(0, 1, 1), (22, 2, 1), (36, 3, 1), (62, 3, 2)]
)
def test_turns_end_in_time(clock, seconds, batches, repetitions):
    """The first batch is timed in any case; a later repetition that is cut off does not count."""
    decoders = {"a": Lasting(1.0, clock, [], "a")}
    found = time_in_turns(decoders, BATCHES, 3, until=seconds)
    assert len(found) == repetitions
    assert {len(each["a"].results) for each in found} == {batches}


def test_medians_are_each_ways_own():
    results = repetition()["autoregressive"].results
    found = medians([{"a": Timed(s, t, results)} for s, t in ((3.0, 1.0), (1.0, 2.0), (2.0, 3.0))])
    assert found == {"a": Timed(2.0, 2.0, results)}


def test_a_spread_is_of_all_values():
    assert Spread.of(iter([3.0, 1.0, 2.0])) == Spread(2.0, 1.0, 3.0)
