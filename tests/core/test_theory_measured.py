"""Blocks on measured ratios: against enumeration where acceptances depend on each other."""

import itertools
import math

import numpy as np
import pytest
import theory_distributions
from scipy import stats

from specdec.core import theory
from specdec.core.theory_measured import (
    autocorrelation,
    cluster_interval,
    measured_block_efficiency,
)

FALSE_ALARM = 1e-6  # Of each statistical test; seeds are fixed, so a pass stays a pass.

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


def prefixes(length):
    """The target's distribution of the first tokens."""
    distribution = {(): 1.0}
    for _ in range(length):
        distribution = {
            (*t, x): p * TARGET[last(t)][x] for t, p in distribution.items() for x in (0, 1)
        }
    return distribution


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 4, 7])
def test_block_efficiency_by_enumeration(gamma):
    found = measured_block_efficiency(texts(), gamma)
    assert found == pytest.approx(LENGTH / calls((), gamma), rel=1e-12)


def test_the_mean_ratio_is_alpha():
    alpha = np.mean(
        [
            sum(p * theory_distributions.alpha_of(np.array(TARGET[last(t)]),
            np.array(DRAFT[last(t)]))
                for t, p in prefixes(start).items())
            for start in range(LENGTH)
        ]
    )  # fmt: skip
    assert np.mean(np.concatenate(texts())) == pytest.approx(alpha, rel=1e-12)


def test_runs_of_acceptances_cost_calls():
    """Half of each text is guessed right, half wrong: fewer tokens a call than by Equation 1."""
    runs = [np.repeat([1.0, 0.0], 4000)]
    one = theory.expected_tokens(0.5, 7)
    # 4000 tokens in calls of 8 and 4000 in calls of one.
    assert measured_block_efficiency(runs, 7) == pytest.approx(2 / (1 / 8 + 1), rel=1e-2)
    assert measured_block_efficiency(runs, 7) < one
    short = [np.repeat([1.0, 0.0], 200)]
    assert measured_block_efficiency(short, 400) == pytest.approx(2, rel=1e-2)  # 1 / (1 - alpha).


def test_equal_ratios_give_equation_1_away_from_the_end():
    for alpha in (0.0, 0.3, 0.8, 1.0):
        for gamma in (0, 1, 4):
            equation_1 = theory.expected_tokens(alpha, gamma)
            ratios = [np.full(20_000, alpha)]
            assert measured_block_efficiency(ratios, gamma) == pytest.approx(equation_1, rel=1e-3)


def test_tokens_past_the_end_do_not_count():
    sure = [np.ones(3)]
    assert measured_block_efficiency(sure, 5) == 3
    assert measured_block_efficiency(sure, 1) == pytest.approx(3 / 2)
    never = [np.zeros(3), np.zeros(0), np.zeros(1)]
    assert measured_block_efficiency(never, 5) == 1


def test_texts_count_by_their_tokens():
    mixed = [np.ones(6), np.zeros(2)]
    assert measured_block_efficiency(mixed, 1) == pytest.approx(8 / (3 + 2))


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


def test_autocorrelation_of_independent_and_of_sticky_values():
    """Estimates of 400,000 pairs; standard error about 1/sqrt(pairs), false-alarm rate 1e-6."""
    rng = np.random.default_rng(0)
    size = (4000, 101)
    tolerance = stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(4000 * 100)
    fresh = (rng.random(size) < 0.7).astype(float)
    assert abs(autocorrelation(list(fresh), 1)) < tolerance
    sticky = fresh.copy()
    for t in range(1, size[1]):
        sticky[:, t] = np.where(rng.random(size[0]) < 0.5, sticky[:, t - 1], fresh[:, t])
    # The sum of correlated products has a wider error: by sqrt((1 + r^2) / (1 - r^2)), r = 1/2.
    for lag in (1, 2):
        assert abs(autocorrelation(list(sticky), lag) - 0.5**lag) < tolerance * math.sqrt(5 / 3)


def test_autocorrelation_of_values_that_never_vary():
    # 4096 values of 1e-4: their mean rounds, their variance is not zero.
    assert autocorrelation([np.full(4096, 1e-4), np.ones(3) * 1e-4], 1) is None


def test_cluster_interval_by_hand():
    """Ratio 4/4; deviations -1 and 1; standard error sqrt(2/1 * 2) / 4."""
    low, high = cluster_interval(np.array([1.0, 3.0]), np.array([2, 2]), z=3)
    assert (low, high) == pytest.approx((1 - 1.5, 1 + 1.5))
    same = cluster_interval(np.array([1.0, 2.0, 4.0]), np.array([2, 4, 8]))
    assert same == pytest.approx((0.5, 0.5))


def test_cluster_interval_covers_what_it_says():
    """2,000 samples of 200 sequences that differ in level and length, which go together.

    A true coverage in [0.93, 0.96] is rejected with probability 1e-6 at most. The interval that
    takes tokens for independent covers far less.
    """
    rng = np.random.default_rng(0)
    samples, sequences = 2000, 200
    lengths = rng.integers(5, 60, (samples, sequences))
    levels = np.clip(rng.beta(4, 2, (samples, sequences)) + (lengths - 32) / 200, 0, 1)
    sums = rng.binomial(lengths, levels)
    grid = stats.beta.ppf((np.arange(20_000) + 0.5) / 20_000, 4, 2)
    means = np.array([np.clip(grid + (n - 32) / 200, 0, 1).mean() for n in range(5, 60)])
    truth = (np.arange(5, 60) * means).sum() / np.arange(5, 60).sum()
    covered = naive = 0
    for s, c in zip(sums, lengths, strict=True):
        low, high = cluster_interval(s, c)
        covered += low <= truth <= high
        ratio = s.sum() / c.sum()
        naive += abs(ratio - truth) <= 1.96 * math.sqrt(ratio * (1 - ratio) / c.sum())
    assert stats.binom.cdf(covered, samples, 0.93) > FALSE_ALARM
    assert stats.binom.sf(covered - 1, samples, 0.96) > FALSE_ALARM
    assert naive < 0.8 * samples


@pytest.mark.usefixtures("own_errors")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measured_block_efficiency([np.ones(3)], -1), "gamma must be >= 0, got -1"),
        (lambda: measured_block_efficiency([], 2), "There are no ratios"),
        (lambda: measured_block_efficiency([np.zeros(0)], 2), "There are no ratios"),
        (
            lambda: measured_block_efficiency([np.array([0.5, 1.2])], 2),
            r"in \[0, 1\], got 0.5 to 1.2",
        ),
        (lambda: measured_block_efficiency([np.array([0.5, np.nan])], 2), r"in \[0, 1\]"),
        (lambda: measured_block_efficiency([np.ones((2, 2))], 2), r"one-dimensional, got \(2, 2\)"),
        (lambda: measured_block_efficiency([np.array([-0.1])], 2), r"in \[0, 1\]"),
        (lambda: measured_block_efficiency([np.ones(2)], -2), "gamma must be >= 0"),
        (lambda: autocorrelation([np.ones(3)], -1), "lag must be >= 0, got -1"),
        (lambda: autocorrelation([np.ones(3), np.ones(2)], 3), "longer than lag 3; the longest"),
        (lambda: autocorrelation([], 0), "the longest has 0 values"),
        (lambda: autocorrelation([np.ones((2, 2))], 1), "one-dimensional"),
        (lambda: cluster_interval(np.ones(2), np.ones(3)), r"must be \[n\] both"),
        (lambda: cluster_interval(np.ones(1), np.ones(1)), "at least two sequences, got 1"),
        (lambda: cluster_interval(np.ones(2), np.array([1, -1])), "counts must be >= 0"),
        (lambda: cluster_interval(np.ones(2), np.zeros(2)), "not all 0"),
        (lambda: cluster_interval(np.ones(2), np.ones(2), z=-1), "z must be >= 0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
