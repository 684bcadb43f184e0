import dataclasses

import pytest

from specdec.core.stats import RunStats
from specdec.measure import costs
from specdec.measure.speed import Timings, predict, summarize
from specdec.measure.timing import Spread, Work, time_interleaved


def repetition(scale=1.0, speculative=3.0):
    """Ten seconds of plain decoding, one of it encoding."""
    seconds = {
        "autoregressive": 10.0, "speculative": speculative, "target_encode": 1.0,
        "draft_encode": 0.5, "target_step": 0.010, "verify_step": 0.012, "draft_step": 0.001,
    }  # fmt: skip
    return {name: value * scale for name, value in seconds.items()}


STATS = RunStats(
    gamma=2, num_rows=1, target_calls=5, proposed=7, examined=6, accepted=3, emitted=8, dropped=0,
    accepted_histogram=(3, 1, 1), accepted_by_rank=(3,), acceptance_prob_sum=3.0,
)  # fmt: skip
TOKENS = {"autoregressive": 1000, "speculative": 1000}


def test_summary_of_one_repetition():
    speed = summarize(Timings([repetition()], 4, TOKENS))
    assert speed.ms_per_token["autoregressive"].median == pytest.approx(10.0)
    assert speed.ms_per_token["speculative"].median == pytest.approx(3.0)
    assert speed.encode_ms["target"].median == pytest.approx(250.0)
    assert speed.encode_ms["draft"].median == pytest.approx(125.0)
    assert speed.decoder_ms.median == pytest.approx(9000 / 4)
    assert speed.measured_speedup.median == pytest.approx(10 / 3)
    # Encoders: 1 s of the plain decode, 1.5 s of the speculative one.
    assert speed.measured_speedup_decoder.median == pytest.approx(9 / 1.5)
    assert speed.cost_ratio.median == pytest.approx(0.1)
    assert speed.verify_ratio.median == pytest.approx(1.2)


def test_ratios_are_taken_within_a_repetition():
    """A machine that slows down for a while slows both methods, and changes no ratio."""
    seconds = [repetition(1.0), repetition(5.0), repetition(2.0, speculative=2.5)]
    speed = summarize(Timings(seconds, 1, TOKENS))
    assert speed.measured_speedup.median == pytest.approx(10 / 3)
    assert speed.measured_speedup.low == pytest.approx(10 / 3)
    assert speed.measured_speedup.high == pytest.approx(4.0)
    assert speed.ms_per_token["autoregressive"] == Spread(20.0, 10.0, 50.0)


def test_prediction():
    timed = dataclasses.replace(STATS, target_calls=4, proposed=6, emitted=9)
    speed = summarize(Timings([repetition()], 1, TOKENS, timed))
    prediction = predict(STATS, speed)
    assert prediction.decoder == pytest.approx(1.75 / (2 * 0.1 + 1.2))
    assert prediction.theorem_3_8 == pytest.approx(1.75 / (2 * 0.1 + 1))
    assert prediction.whole == pytest.approx(10 / (1 + 0.5 + 9 / prediction.decoder))
    # Of the texts that were timed: 4 calls, 6 guesses made.
    assert prediction.counted == pytest.approx(9 / (6 * 0.1 + 4 * 1.2))


def test_what_runs_before_is_not_measured(monkeypatch):
    now = 0.0

    def lasts(seconds):
        def run():
            nonlocal now
            now += seconds

        return run

    monkeypatch.setattr("time.perf_counter", lambda: now)
    works = [Work("a", lasts(2.0), 1, before=lasts(5.0)), Work("b", lasts(1.0), 1)]
    assert time_interleaved(works, 2) == 2 * [{"a": 2.0, "b": 1.0}]


def test_a_start_is_what_the_first_block_takes_longer_and_a_drafters_what_it_adds():
    loops = {"plain": 0.1 / costs.PER_STEP, "block": 0.25 / costs.PER_STEP}
    seconds = {"plain_first": 2.0, "fast_first": 3.0} | loops
    found = costs.start_seconds(seconds, num_batches=2)
    assert found == pytest.approx({"target_encode": 2 - 2 * 0.1, "draft_encode": 0.7})
    del seconds["fast_first"]
    assert costs.start_seconds(seconds, 1) == pytest.approx({"target_encode": 1.9})


def test_interleaving_alternates_and_warms_up_each_program_once():
    calls = []

    def work(name, program, tag):
        return Work(name, lambda: calls.append(tag), program)

    works = [work("a", 1, "a1"), work("b", 1, "b1"), work("a", 1, "a1 again"), work("a", 2, "a2")]
    seconds = time_interleaved(works, 2)
    warm_up, first, second = calls[:3], calls[3:7], calls[7:]
    assert sorted(warm_up) == ["a1 again", "a2", "b1"]
    assert first == ["a1", "b1", "a1 again", "a2"]
    assert second == first[::-1]
    assert [sorted(s) for s in seconds] == [["a", "b"], ["a", "b"]]
