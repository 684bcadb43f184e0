"""Theory for acceptances that are measured along texts and are not independent.

Everything here starts from ratios r_t = min(1, q(x_t)/p(x_t)) at the tokens x of texts that follow
the target's distribution p (with what the draft assigns, q, after the same prefix). Given that the
target's output is x_t, its guess was accepted with probability r_t, since min(p, q) of p's mass is
accepted guesses. So, x_1..x_i being such a text,

    P(the first i guesses are accepted) = sum_x prod_j min(p, q) = E_p[prod_j r_j],

and E[r] is alpha. Equation 1 of Leviathan et al. 2023 is the case where the r_j are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Real


def measured_block_efficiency(ratios: Sequence[Float[np.ndarray, " _"]], gamma: int) -> float:
    """Tokens a target call when these texts are decoded from their beginnings.

    All tokens over the expected number of blocks. A block at t emits exactly i tokens with
    probability r_t ... r_{t+i-2} (1 - r_{t+i-1}), for i = gamma + 1 without the last factor, and
    the next one starts behind them; that gives each position's probability to start one. Where
    acceptances come in runs this is less than Equation 1 at the same alpha: a run longer than
    gamma needs several calls.

    Args:
      ratios: for each text the ratios r in [0, 1] at its own tokens, its end included; an empty
        one counts for nothing.
    """
    return float(sum(map(len, ratios)) / sum(_blocks(text, gamma) for text in ratios))


def autocorrelation(sequences: Sequence[Float[np.ndarray, " _"]], lag: int) -> float | None:
    """Correlation of values ``lag`` apart within a sequence; None where they never vary.

    The mean of (y_t - m)(y_{t+lag} - m) over all such pairs, over the variance; m and the variance
    are those of all values together. So sequences that differ in their level correlate too, as they
    should: Equation 1 misses for that as well.

    Args:
      sequences: one or more are longer than the lag.
    """
    together = np.concatenate(sequences)
    if together.min() == together.max():
        return None
    centred = [values - together.mean() for values in sequences]
    pairs = np.concatenate([v[: len(v) - lag] * v[lag:] for v in centred if len(v) > lag])
    return float(pairs.mean() / together.var())


def cluster_interval(
    sums: Real[np.ndarray, " n"], counts: Real[np.ndarray, " n"], z: float = 1.96
) -> tuple[float, float]:
    """Confidence interval of sum(sums) / sum(counts), whose n summands are sequences.

    R +- z se with R the ratio and se^2 = n/(n-1) sum_i (s_i - R c_i)^2 / (sum_i c_i)^2: the ratio
    linearised, each sequence one observation. So it holds however values correlate within a
    sequence, if sequences are independent and many (tens; with few it is too narrow).

    Args:
      z: the normal quantile, 1.96 for 95 %.

    Raises:
      ValueError: fewer than two sequences.
    """
    s, c = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    if len(s) < 2:
        raise ValueError(f"An interval needs at least two sequences, got {len(s)}.")
    ratio = s.sum() / c.sum()
    variance = len(s) / (len(s) - 1) * ((s - ratio * c) ** 2).sum()
    half = z * math.sqrt(variance) / c.sum()
    return float(ratio - half), float(ratio + half)


def _blocks(ratios: np.ndarray, gamma: int) -> float:
    """Blocks that a decode of this text takes, on average."""
    size = len(ratios)
    # [t, i]: probability that a block starting at t emits the token at t + i; 0 past the end.
    emitted = np.zeros((size, gamma + 1))
    emitted[:, 0] = 1
    for i in range(1, min(gamma, size - 1) + 1):
        emitted[: size - i, i] = emitted[: size - i, i - 1] * ratios[i - 1 : size - 1]
    exactly = -np.diff(emitted, axis=1, append=0)  # [t, i]: emits i + 1 tokens.
    starts = np.zeros(size + gamma + 1)
    starts[0] = 1
    for t in range(size):
        starts[t + 1 : t + gamma + 2] += starts[t] * exactly[t]
    return starts[:size].sum()
