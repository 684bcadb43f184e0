"""What theory says of speed. Notation: alpha, gamma, c (``cost_ratio``), v (``verify_ratio``)."""

from __future__ import annotations


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a block emits on average, (1 - alpha^(gamma+1)) / (1 - alpha).

    Source: Leviathan et al. 2023, Equation 1. At alpha = 1 it is gamma + 1.

    Raises:
      ValueError: alpha outside [0, 1] or gamma negative.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}.")
    if gamma < 0:
        raise ValueError(f"gamma must be >= 0, got {gamma}.")
    if alpha == 1:
        return gamma + 1.0
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def speedup(alpha: float, gamma: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
    """Predicted walltime improvement, expected_tokens / (gamma c + v).

    Source: Leviathan et al. 2023, Theorem 3.8, which is the case v = 1: that the target scores
    gamma + 1 tokens in the time of one.

    Args:
      cost_ratio: c, time of a draft step over time of a target step on one token.
      verify_ratio: v, time of a target call on gamma + 1 tokens over that on one.
    """
    return block_speedup(expected_tokens(alpha, gamma), gamma, cost_ratio, verify_ratio)


def block_speedup(tokens: float, guesses: float, cost_ratio: float, verify_ratio: float) -> float:
    """Walltime improvement of blocks that emit ``tokens`` from ``guesses`` on average.

    :func:`speedup` without Equation 1's independent acceptances and equally long blocks.
    """
    return tokens / (guesses * cost_ratio + verify_ratio)


def best_gamma(alpha: float, cost_ratio: float, max_gamma: int = 64) -> int:
    """The gamma that maximises Theorem 3.8, 0 when speculation does not pay.

    Source: Leviathan et al. 2023, section 3.5 and Figure 3.
    """
    return max(range(max_gamma + 1), key=lambda gamma: speedup(alpha, gamma, cost_ratio))
