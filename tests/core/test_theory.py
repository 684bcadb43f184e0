"""Speed from alpha: the paper's printed values, limits, and brute force."""

import math

import numpy as np
import pytest

from specdec.core import theory

ALPHAS = [i / 20 for i in range(20)]
GAMMAS = range(0, 21)


def geometric(alpha: float, gamma: int) -> dict[int, float]:
    """The distribution of accepted guesses in a block, by counting rejections."""
    distribution = {n: alpha**n * (1 - alpha) for n in range(gamma)}
    distribution[gamma] = alpha**gamma
    return distribution


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations", "speed"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_table_1(alpha, gamma, operations, speed):
    """Leviathan et al. 2023, Table 1, at c = c^ = 0."""
    assert round(theory.speedup(alpha, gamma, 0.0), 2) == speed
    assert round(theory.operations_factor(alpha, gamma, 0.0), 2) == operations


@pytest.mark.parametrize(
    ("cost_ratio", "gammas"),
    [
        (0.01, [5, 7, 9, 14, 24, 40]),
        (0.02, [4, 6, 8, 11, 19, 31]),
        (0.05, [3, 4, 6, 8, 13, 21]),
        (0.1, [2, 3, 4, 6, 10, 15]),
    ],
)
def test_figure_3(cost_ratio, gammas):
    alphas = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    assert [theory.best_gamma(alpha, cost_ratio) for alpha in alphas] == gammas


def test_equation_1_is_the_mean_of_the_geometric_law_plus_one():
    for alpha in ALPHAS:
        for gamma in GAMMAS:
            mean = sum(n * share for n, share in geometric(alpha, gamma).items())
            assert theory.expected_tokens(alpha, gamma) == pytest.approx(mean + 1, rel=1e-12)


def test_tokens_grow_with_alpha_and_gamma_between_their_limits():
    for gamma in GAMMAS[1:]:
        tokens = [theory.expected_tokens(alpha, gamma) for alpha in ALPHAS]
        assert np.all(np.diff(tokens) > 0)
        assert theory.expected_tokens(1e-9, gamma) == pytest.approx(1)
        assert theory.expected_tokens(1 - 1e-9, gamma) == pytest.approx(gamma + 1, rel=1e-6)
        assert theory.expected_tokens(1.0, gamma) == gamma + 1
    for alpha in ALPHAS[1:]:
        tokens = [theory.expected_tokens(alpha, gamma) for gamma in GAMMAS]
        assert tokens[0] == 1
        assert np.all(np.diff(tokens) >= 0)
        assert theory.expected_tokens(alpha, 10_000) == pytest.approx(theory.oracle_tokens(alpha))
    assert theory.oracle_tokens(1.0) == math.inf


def test_speedup_divides_tokens_by_the_time_of_a_block():
    for gamma in GAMMAS:
        assert theory.speedup(0.8, gamma, 0.0) == theory.expected_tokens(0.8, gamma)
        falling = [theory.speedup(0.8, gamma, c) for c in (0.0, 0.1, 0.7, 2.0)]
        assert gamma == 0 or np.all(np.diff(falling) < 0)
    tokens = (1 - 0.8**5) / 0.2
    assert theory.speedup(0.8, 4, 0.1, 1.4) == pytest.approx(tokens / (4 * 0.1 + 1.4), rel=1e-12)
    assert theory.block_speedup(3.0, 3.5, 0.1, 1.2) == pytest.approx(3.0 / 1.55)
    assert theory.block_speedup(3.0, 4, -0.01, 1.0) == pytest.approx(3.0 / 0.96)


def test_best_gamma_at_the_ends():
    assert theory.best_gamma(0.3, 0.4) == 0
    assert theory.best_gamma(0.0, 0.0) == 0
    assert theory.best_gamma(1.0, 0.5, max_gamma=9) == 9


def test_operations_by_counting_them():
    """Theorem 3.11: all guesses are drafted and all places scored, whatever is accepted."""
    for alpha in ALPHAS:
        for gamma in (0, 1, 3, 10):
            for ratio in (0.0, 0.1, 1.0):
                distribution = geometric(alpha, gamma)
                tokens = sum((n + 1) * share for n, share in distribution.items())
                spent = sum((gamma * ratio + gamma + 1) * share for share in distribution.values())
                factor = theory.operations_factor(alpha, gamma, ratio)
                assert factor == pytest.approx(spent / tokens, rel=1e-12)
                assert factor >= 1 - 1e-12
    assert theory.operations_factor(1.0, 7, 0.0) == 1
    assert theory.operations_factor(0.4, 0, 0.3) == 1
    assert theory.operations_factor(0.0, 7, 0.1) == pytest.approx(8.7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(-0.1, 3), r"alpha must be in \[0, 1\], got -0.1"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma must be >= 0, got -1"),
        (lambda: theory.speedup(0.5, 2, 0.1, -0.2), r"time, guesses c \+ v, must be > 0"),
        (lambda: theory.block_speedup(2.0, 3, 0.0, math.nan), "must be > 0, got nan"),
        (lambda: theory.best_gamma(0.5, -0.1), "cost_ratio must be >= 0, got -0.1"),
        (lambda: theory.best_gamma(0.5, 0.1, max_gamma=-1), "max_gamma must be >= 0"),
        (lambda: theory.operations_factor(0.5, 3, -0.1), "operations_ratio must be >= 0"),
        (lambda: theory.alpha_of_blocks(5.1, 4), r"tokens must be in .* = \[1, 5\], got 5.1"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.896, 1.0])
def test_the_alpha_of_blocks_is_equation_1_the_other_way(alpha, gamma):
    tokens = theory.expected_tokens(alpha, gamma)
    # Near 1 the differences of Equation 1 cancel.
    assert theory.alpha_of_blocks(tokens, gamma) == pytest.approx(alpha, abs=1e-6)
