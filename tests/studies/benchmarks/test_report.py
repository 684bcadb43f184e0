"""Tables say what was measured, what is absent and what was forced."""

import dataclasses

import pytest

from specdec.studies.benchmarks import report
from specdec.studies.benchmarks.harness import Measurement
from specdec.studies.measure.breakdown import Breakdown

PLAIN = Measurement(
    "specdec autoregressive", seconds=(2.0, 2.2, 2.4), first_token_seconds=(0.1, 0.1, 0.1),
    num_tokens=24, same_rows=2, load_seconds=1.0, compile_seconds=3.0, memory_bytes=5_000_000,
    versions={"jax": "1"},
)  # fmt: skip
FAST = dataclasses.replace(PLAIN, system="specdec speculative", seconds=(1.0, 1.1, 1.2))
ABSENT = Measurement("T5X", absent="give --t5x_path")
BREAKDOWN = Breakdown(
    gamma=2, target_encode=3.0, draft_encode=1.0, drafts=0.2, scoring=1.2, verification=0.05,
    bookkeeping=0.03, plain_step=1.0, speculative=20.0, autoregressive=28.0, target_calls=10,
    tokens=20, plain_tokens=25, plain_steps=15, alpha=0.5, block_efficiency=1.75,
    decoder_bytes=40_000_000, bandwidth=50e9, guesses=1.5,
    program_bytes=110_000_000, needed_bytes=100_000_000,
)  # fmt: skip


def test_breakdown_arithmetic():
    assert BREAKDOWN.block == pytest.approx(1.48)
    assert BREAKDOWN.block_overhead == pytest.approx(1.48 / 1.4)
    assert BREAKDOWN.explained == pytest.approx((3 + 1 + 14.8) / 20)
    assert BREAKDOWN.counted_speedup == pytest.approx(20 / 10 / (25 / 15) / (1.5 * 0.1 + 1.28))
    assert BREAKDOWN.floor_ratio == pytest.approx(1.0 / 0.8)
    assert BREAKDOWN.cost_ratio == pytest.approx(0.1)
    assert BREAKDOWN.verify_ratio == pytest.approx(1.28)
    assert BREAKDOWN.predicted_speedup == pytest.approx(1.75 / 1.48)
    assert BREAKDOWN.measured_speedup == pytest.approx((25 / 25) / (16 / 20))


def test_numbers_and_table(tiny_workload):
    real = dataclasses.replace(tiny_workload, forced_alpha=None)
    result = report.numbers(real, [PLAIN, FAST, ABSENT], BREAKDOWN)
    plain, fast, absent = result["systems"]
    assert plain["ms_per_token"]["median"] == pytest.approx(1e3 * 2.2 / 24)
    assert fast["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert fast["first_token_ms"]["median"] == pytest.approx(100.0)
    assert fast["tokens_per_second"] == pytest.approx(24 / 1.1)
    assert absent == {"system": "T5X", "absent": "give --t5x_path"}
    shown = report.text(result)
    assert "T5X                     absent: give --t5x_path" in shown
    assert "2/2" in shown
    assert "one block, ms: drafts 0.200 (14%)" in shown
    assert "94.0% of 20.0; plain decoding 28.0" in shown
    assert "allocates 110 MB, 1.10 x weights" in shown
    assert "1.25 x the time to read its 40 MB at the measured 50.0 GB/s" in shown
    assert "is faster here" not in shown


def test_forced_acceptance_is_said_and_its_tokens_are_not_compared(tiny_workload):
    shown = report.text(report.numbers(tiny_workload, [PLAIN, FAST], None))
    assert shown.startswith("tiny, batch 2, input 6, output 12, FORCED acceptance 0.5")
    assert "2/2" not in shown


def test_says_when_speculation_does_not_pay(tiny_workload):
    slow = dataclasses.replace(BREAKDOWN, drafts=2.0)
    shown = report.text(report.numbers(tiny_workload, [PLAIN, FAST], slow))
    assert "Plain decoding is faster here" in shown
