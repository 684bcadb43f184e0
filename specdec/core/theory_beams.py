"""The speedup of speculative beams, from counts and costs.

Source: Leviathan, Kalman, Matias (2023), "Fast Inference from Transformers via Speculative
Decoding", appendix A.4, which has no formula; these are Equation 1 and Theorem 3.8 for levels.
"""

from __future__ import annotations

from collections.abc import Sequence


def levels_per_call(counts: Sequence[float], gamma: int) -> float:
    """Levels that a call advances with gamma levels of guesses; plain beams have one.

    sum_n counts[n] min(n, gamma + 1) / sum_n counts[n]

    Args:
      counts: calls that advanced 0, 1, ... levels, or their shares, measured with at least gamma
        levels. With fewer the next block would begin earlier, which this leaves out.
    """
    return sum(n * min(level, gamma + 1) for level, n in enumerate(counts)) / sum(counts)


def beam_speedup(levels: float, gamma: int, cost_ratio: float, verify_ratio: float) -> float:
    """Time of plain beams over that of speculative ones, without the encoders.

    levels / (v + gamma c)

    Args:
      levels: a call's, which is how many times fewer calls there are.
      cost_ratio: c, a draft's call on u tokens over a plain call, which has W.
      verify_ratio: v, the target's call on W + u gamma tokens over a plain call.
    """
    return levels / (verify_ratio + gamma * cost_ratio)
