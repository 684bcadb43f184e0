"""Tables say what was measured, what is absent and what was forced."""

import dataclasses

import pytest

from specdec.measure import speed
from specdec.reproduce.benchmarks import report
from specdec.reproduce.benchmarks.harness import Measurement
from tests.measure.test_speed import timed

PLAIN = Measurement(
    "specdec autoregressive", seconds=(2.0, 2.2, 2.4), first_token_seconds=(0.1, 0.1, 0.1),
    num_tokens=24, same_rows=2, load_seconds=1.0, compile_seconds=3.0, memory_bytes=5_000_000,
    versions={"jax": "1"},
)  # fmt: skip
FAST = dataclasses.replace(PLAIN, system="specdec speculative", seconds=(1.0, 1.1, 1.2))
ABSENT = Measurement("T5X", absent="give --t5x_path")
DECODER = {
    "alpha": 0.5, "block_efficiency": 1.75, "cost_ratio": 0.1, "verify_ratio": 1.28,
    "predicted_speedup": 1.18, "counted_speedup": 1.16, "measured_speedup": 1.25,
}  # fmt: skip


def test_the_decoder_alone_has_the_medians_of_its_own_run():
    """By hand: 4 of 8 guesses kept, two a call; a draft step is a tenth of a plain step."""
    counts = {"examined": 8, "accepted": 4, "acceptance_prob_sum": 4.0, "proposed": 8}
    times = {
        "autoregressive": timed(2.0, 1.0, 8, tokens=8),
        "speculative": timed(3.0, 1.45, 4, tokens=8, **counts),
        "without a draft": timed(2.0, 1.25, 8, tokens=8),
    }
    found = report.decoder_speed(speed.summarize([times], 2))
    assert found["block_efficiency"] == 2
    assert (found["cost_ratio"], found["verify_ratio"]) == pytest.approx((0.1, 1.25))
    assert found["measured_speedup"] == pytest.approx(8 / (4 * 1.45))
    assert found["predicted_speedup"] == pytest.approx(1.75 / 1.45)
    assert found["counted_speedup"] == pytest.approx(2 / 1.45)


def test_numbers_and_table(tiny_workload):
    real = dataclasses.replace(tiny_workload, forced_alpha=None)
    result = report.numbers(real, [PLAIN, FAST, ABSENT], DECODER)
    plain, fast, absent = result["systems"]
    assert plain["ms_per_token"]["median"] == pytest.approx(1e3 * 2.2 / 24)
    assert fast["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert fast["first_token_ms"]["median"] == pytest.approx(100.0)
    assert fast["tokens_per_second"] == pytest.approx(24 / 1.1)
    assert absent == {"system": "T5X", "absent": "give --t5x_path"}
    shown = report.text(result)
    assert "T5X                     absent: give --t5x_path" in shown
    assert "2/2" in shown
    assert "c 0.100, v 1.28, alpha 0.500; decoder speedup predicted 1.18" in shown
    assert "is faster here" not in shown


def test_forced_acceptance_is_said_and_its_tokens_are_not_compared(tiny_workload):
    shown = report.text(report.numbers(tiny_workload, [PLAIN, FAST], None))
    assert shown.startswith("tiny, batch 2, input 6, output 12, FORCED acceptance 0.5")
    assert "2/2" not in shown
