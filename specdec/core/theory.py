"""The speedup in theory, given alpha.

Notation: alpha, gamma, c (``cost_ratio``), v (``verify_ratio``); "the paper" is Leviathan, Kalman
and Matias 2023. Improvements and factors are over plain decoding of the same text.
``theory_measured`` has what holds without independent acceptances.

Everything raises ValueError for alpha outside [0, 1], a negative gamma or negative operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a block emits on average, (1 - alpha^(gamma+1)) / (1 - alpha).

    Source: the paper's Equation 1. At alpha = 1 it is gamma + 1.
    """
    _check_alpha(alpha)
    if gamma < 0:
        raise ValueError(f"gamma must be >= 0, got {gamma}.")
    if alpha == 1:
        return gamma + 1.0
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def speedup(alpha: float, gamma: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
    """Predicted walltime improvement, expected_tokens / (gamma c + v).

    Source: the paper's Theorem 3.8, which is the case v = 1: that the target scores gamma + 1
    tokens in the time of one.

    Args:
      cost_ratio: c, time of a draft step over time of a target step on one token.
      verify_ratio: v, time of a target call on gamma + 1 tokens over that on one.
    """
    return block_speedup(expected_tokens(alpha, gamma), gamma, cost_ratio, verify_ratio)


def block_speedup(tokens: float, guesses: float, cost_ratio: float, verify_ratio: float) -> float:
    """Walltime improvement of blocks that emit ``tokens`` from ``guesses`` on average.

    :func:`speedup` without Equation 1's independent acceptances and equally long blocks. ValueError
    if a block takes no time; c alone may be negative, as a negligible draft's measured one can be.
    """
    time = guesses * cost_ratio + verify_ratio
    if not time > 0:
        raise ValueError(f"A block's time, guesses c + v, must be > 0, got {time}.")
    return tokens / time


def levels_per_call(counts: Sequence[float], gamma: int) -> float:
    """Levels that a call of speculative beams advances with gamma levels of guesses.

    sum_n counts[n] min(n, gamma + 1) / sum_n counts[n]. Plain beams advance one, so it is the
    ``tokens`` of :func:`block_speedup` over them. Source: the paper's appendix A.4, which has no
    formula; this is Equation 1 for levels.

    Args:
      counts: calls that advanced 0, 1, ... levels, or their shares, measured with at least gamma
        levels. With fewer the next block would begin earlier, which this leaves out.
    """
    return sum(n * min(level, gamma + 1) for level, n in enumerate(counts)) / sum(counts)


def alpha_of_blocks(tokens: float, gamma: int) -> float:
    """The alpha at which blocks of gamma guesses emit ``tokens`` on average.

    The inverse of :func:`expected_tokens` (the paper's Equation 1), by bisection. ValueError also
    for tokens outside [1, gamma + 1].
    """
    if not 1 <= tokens <= expected_tokens(1, gamma):
        raise ValueError(f"tokens must be in [1, gamma + 1] = [1, {gamma + 1}], got {tokens}.")
    low, high = 0.0, 1.0
    if expected_tokens(low, gamma) >= tokens:
        return low
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, gamma) >= tokens
        low, high = (low, middle) if enough else (middle, high)
    return high


def best_gamma(alpha: float, cost_ratio: float, max_gamma: int = 64) -> int:
    """The gamma that maximises :func:`speedup` at v = 1, 0 when speculation does not pay.

    Source: the paper's section 3.5 and Figure 3. At alpha = 1 and c < 1 longer blocks are always
    better and it is ``max_gamma``. ValueError also for a negative c or ``max_gamma``.
    """
    if not cost_ratio >= 0:
        raise ValueError(f"cost_ratio must be >= 0, got {cost_ratio}.")
    if max_gamma < 0:
        raise ValueError(f"max_gamma must be >= 0, got {max_gamma}.")
    return max(range(max_gamma + 1), key=lambda gamma: speedup(alpha, gamma, cost_ratio))


def oracle_tokens(alpha: float) -> float:
    """Tokens a block emits if it ends at the first rejection only, 1 / (1 - alpha).

    Source: the paper's section 3.5; Equation 1 as gamma goes to infinity. Infinite at alpha = 1.
    """
    _check_alpha(alpha)
    return 1 / (1 - alpha) if alpha < 1 else math.inf


def operations_factor(alpha: float, gamma: int, operations_ratio: float) -> float:
    """Arithmetic operations a token, (1 - alpha)(gamma c^ + gamma + 1) / (1 - alpha^(gamma+1)).

    Source: the paper's Theorem 3.11: a block computes gamma + 1 tokens with the target and gamma
    with the draft. At least 1; exactly 1 only without waste, at alpha = 1 with c^ = 0 or gamma = 0.

    Args:
      operations_ratio: c^, operations of a draft step over those of a target step on one token.
    """
    if not operations_ratio >= 0:
        raise ValueError(f"operations_ratio must be >= 0, got {operations_ratio}.")
    return (gamma * operations_ratio + gamma + 1) / expected_tokens(alpha, gamma)


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}.")
