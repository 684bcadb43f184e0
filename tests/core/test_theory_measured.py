"""Blocks on measured ratios: against enumeration where acceptances depend on each other."""

import itertools

import numpy as np
import pytest

from specdec.core import theory
from specdec.core.theory_measured import (
    autocorrelation,
    cluster_interval,
    measured_block_efficiency,
)

# Two tokens, and the next one's distribution depends on the last: after 0 the draft is nearly
# right, after 1 it is mostly wrong; both distributions tend to stay. In quarters and eighths.
TARGET = {None: (0.5, 0.5), 0: (0.75, 0.25), 1: (0.25, 0.75)}
DRAFT = {None: (0.5, 0.5), 0: (0.875, 0.125), 1: (1.0, 0.0)}
LENGTH = 5


def last(prefix):
    return prefix[-1] if prefix else None


def blocks(prefix, gamma):
    """Algorithm 1 once, every outcome: (tokens emitted, probability)."""

    def guess(emitted, left, probability):
        p, q = TARGET[last(prefix + emitted)], DRAFT[last(prefix + emitted)]
        if not left:
            yield from (((*emitted, x), probability * p[x]) for x in (0, 1))
            return
        accept = [min(1.0, p[x] / q[x]) if q[x] else 0.0 for x in (0, 1)]
        rejected = sum(q[x] * (1 - accept[x]) for x in (0, 1))
        residual = [max(0.0, p[x] - q[x]) for x in (0, 1)]
        for x in (0, 1):
            yield from guess((*emitted, x), left - 1, probability * q[x] * accept[x])
            if rejected:
                share = residual[x] / sum(residual)
                yield (*emitted, x), probability * rejected * share

    for emitted, probability in guess((), gamma, 1.0):
        if probability:
            yield emitted[: LENGTH - len(prefix)], probability


def calls(prefix, gamma):
    """Target calls from here to the end, on average."""
    if len(prefix) == LENGTH:
        return 0.0
    return 1 + sum(pr * calls(prefix + emitted, gamma) for emitted, pr in blocks(prefix, gamma))


def texts():
    """Each text as often as its probability says, of 2 * 4^(LENGTH-1), as ratios."""
    found = []
    for text in itertools.product((0, 1), repeat=LENGTH):
        probability, ratios = 1.0, []
        for i, x in enumerate(text):
            p, q = TARGET[last(text[:i])], DRAFT[last(text[:i])]
            probability *= p[x]
            ratios.append(min(1.0, q[x] / p[x]))
        found += [np.array(ratios)] * round(probability * 2 * 4 ** (LENGTH - 1))
    return found


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 4, 7])
def test_block_efficiency_by_enumeration(gamma):
    found = measured_block_efficiency(texts(), gamma)
    assert found == pytest.approx(LENGTH / calls((), gamma), rel=1e-12)


def test_runs_of_acceptances_cost_calls():
    """Half of each text is guessed right, half wrong: fewer tokens a call than by Equation 1."""
    runs = [np.repeat([1.0, 0.0], 4000)]
    one = theory.expected_tokens(0.5, 7)
    # 4000 tokens in calls of 8 and 4000 in calls of one.
    assert measured_block_efficiency(runs, 7) == pytest.approx(2 / (1 / 8 + 1), rel=1e-2)
    assert measured_block_efficiency(runs, 7) < one
    short = [np.repeat([1.0, 0.0], 200)]
    assert measured_block_efficiency(short, 400) == pytest.approx(2, rel=1e-2)  # 1 / (1 - alpha).


def test_tokens_past_the_end_do_not_count():
    sure = [np.ones(3)]
    assert measured_block_efficiency(sure, 5) == 3
    assert measured_block_efficiency(sure, 1) == pytest.approx(3 / 2)
    never = [np.zeros(3), np.zeros(0), np.zeros(1)]
    assert measured_block_efficiency(never, 5) == 1
    assert measured_block_efficiency([np.ones(6), np.zeros(2)], 1) == pytest.approx(8 / (3 + 2))


def test_autocorrelation_by_hand():
    wave = [np.array([0.0, 1.0] * 4)]
    assert autocorrelation(wave, 0) == pytest.approx(1)
    assert autocorrelation(wave, 1) == pytest.approx(-1)
    assert autocorrelation(wave, 2) == pytest.approx(1)
    # Deviations -2, -1, 0, 3 of variance 3.5; pairs of lag 2 give 0 and -3.
    assert autocorrelation([np.array([0.0, 1.0, 2.0, 5.0])], 2) == pytest.approx(-1.5 / 3.5)


def test_autocorrelation_stays_within_sequences():
    """Sequences of different level: every pair inside agrees, every pair across does not."""
    levels = [np.zeros(2), np.ones(2)] * 50
    assert autocorrelation(levels, 1) == pytest.approx(1)
    assert autocorrelation([*levels, np.array([1.0]), np.array([0.0])], 1) == pytest.approx(1)


def test_autocorrelation_of_values_that_never_vary():
    # 4096 values of 1e-4: their mean rounds, their variance is not zero.
    assert autocorrelation([np.full(4096, 1e-4), np.ones(3) * 1e-4], 1) is None


def test_cluster_interval_by_hand():
    """Ratio 4/4; deviations -1 and 1; standard error sqrt(2/1 * 2) / 4."""
    low, high = cluster_interval(np.array([1.0, 3.0]), np.array([2, 2]), z=3)
    assert (low, high) == pytest.approx((1 - 1.5, 1 + 1.5))
    same = cluster_interval(np.array([1.0, 2.0, 4.0]), np.array([2, 4, 8]))
    assert same == pytest.approx((0.5, 0.5))


def test_one_sequence_is_too_few():
    with pytest.raises(ValueError, match="at least two sequences, got 1"):
        cluster_interval(np.ones(1), np.ones(1))
