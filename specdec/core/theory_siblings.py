"""The highest probability with which any rule can accept one of K guesses of a position.

A rule sees K tokens drawn from q and emits a token whose distribution is p. It accepts if that
token is one of the K. So the best rule is a flow from sets of K tokens to tokens, and by its
minimal cut

    P(accepted) = min over sets H of tokens of  p(H) + 1 - P(all K tokens are in H).

A prefix of the order by decreasing q/p attains the minimum. H = {} bounds it by 1.

Sources: Sun et al. 2023, "SpecTr: Fast Speculative Decoding via Optimal Transport", for the
transport problem; Hu et al. 2025, "Towards Optimal Multi-draft Speculative Decoding", for the sets
H and their order, with and without replacement.

Notation: p [B, V] is the target's distribution, q [B, V] that of the first guess. All K of
``counts`` are computed together. Everything raises ValueError if shapes differ, a row is no
distribution, or a count is below 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

_ERROR = 1e-6  # What the bound without replacement may be off by.
_STEP = 0.5  # Of the logarithm of time: a sum over it is off by about exp(-pi^2 / step) = 3e-9.
# Times before the first and after the last count for less than 1e-7.
_FIRST, _LAST = 1e-4, 18.0
_ROWS = 64  # Rows that are computed together: the arrays stay small.
_SUM_TOLERANCE = 1e-3  # A distribution's sum may miss 1 by this: float32, a large vocabulary.


def independent_optimum(
    p: Float[np.ndarray, "b v"], q: Float[np.ndarray, "b v"], counts: Sequence[int]
) -> Float[np.ndarray, "b k"]:
    """The bound for independent draws: min over prefixes H of p(H) + 1 - q(H)^K.

    Source: Hu et al. 2025. At K = 1 it is sum_x min(p, q).
    """
    p, q, order = _sorted(p, q, counts)
    in_p, in_q = (np.cumsum(_take(each, order), axis=1) for each in (p, q))
    best = [(in_p - np.minimum(in_q, 1.0) ** count).min(axis=1) for count in counts]
    return 1 + np.minimum(np.stack(best, axis=1), 0.0)


def optimum_without_replacement(
    p: Float[np.ndarray, "b v"], q: Float[np.ndarray, "b v"], counts: Sequence[int]
) -> Float[np.ndarray, "b k"]:
    """The bound for draws without replacement: each from q without the earlier ones, renormalised.

    Such draws are the first arrivals of independent exponential clocks with rates q(x). All K are
    in H if K clocks of H ring before the first of the others, which is exponential with rate
    a = q(not H). So

        P(all K in H) = integral over t of a exp(-a t) P(at least K clocks of H rang by t).

    The clocks are followed token by token in the order of q/p, each having rung by t with
    1 - exp(-q(x) t). The integral is over log t, where a sum over equal steps converges fast. Where
    q has fewer than K tokens, they are all the guesses there are.

    Exact to 1e-6: tokens that all draws together see with less probability than a quarter of that
    are left out, and sets H that the draws leave with less than that have P = 1.

    Source: Hu et al. 2025 for the bound and the order.
    """
    p, q, order = _sorted(p, q, counts)
    pieces = (slice(first, first + _ROWS) for first in range(0, len(p), _ROWS))
    best = [_by_count(p[rows], q[rows], order[rows], max(counts)) for rows in pieces]
    return np.concatenate(best)[:, np.array(counts) - 1]


def _by_count(
    p: Float[np.ndarray, "b v"], q: Float[np.ndarray, "b v"], order: Int[np.ndarray, "b v"],
    most: int,
) -> Float[np.ndarray, "b k"]:  # fmt: skip
    """The bound for 1..``most`` draws."""
    ascending = np.sort(q, axis=1)
    up_to = np.cumsum(ascending, axis=1)
    # What is left of q for the last draw, at least; its draws see mass m with at most m / left.
    drawn = np.minimum(most, (q > 0).sum(axis=1))
    left = np.take_along_axis(up_to, q.shape[1] - drawn[:, None], axis=1)
    small = _ERROR / 4 * left / drawn[:, None]
    least = np.take_along_axis(ascending, (up_to <= small).sum(axis=1, keepdims=True), axis=1)
    rates = np.where(q >= least, q, 0.0)
    # Tokens that are left out come last, where they make no set H better.
    kept = np.take_along_axis(order, np.argsort(_take(rates, order) == 0, kind="stable"), axis=1)
    kept = kept[:, : (rates > 0).sum(axis=1).max()]
    in_p, rates = np.cumsum(_take(p, kept), axis=1), _take(rates, kept)
    # Summed from the end: a small rest is not the difference of two large sums.
    outside = np.pad(np.cumsum(rates[:, :0:-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
    steps = math.ceil(math.log(_LAST / small.min() / _FIRST) / _STEP)
    times = _FIRST * np.exp(_STEP * np.arange(steps + 1))
    rang = np.zeros((most + 1, len(p), len(times)))  # P(at least k rang by t).
    rang[0] = 1
    best = np.ones((most, len(p)))
    for position in range(kept.shape[1]):
        rings = -np.expm1(-rates[:, position, None] * times)
        rang[1:] += rings * (rang[:-1] - rang[1:])
        at = outside[:, position, None] * times
        inside = np.einsum("bt,kbt->kb", _STEP * at * np.exp(-at), rang[1:])
        inside = np.where(outside[:, position] <= small[:, 0], 1.0, inside)
        best = np.minimum(best, in_p[:, position] + 1 - inside)
        if (in_p[:, position] >= best).all():  # Larger sets have more of p, and no P above 1.
            break
    return best.T


def _sorted(
    p: np.ndarray, q: np.ndarray, counts: Sequence[int]
) -> tuple[Float[np.ndarray, "b v"], Float[np.ndarray, "b v"], Int[np.ndarray, "b v"]]:
    """p and q with sums of 1, and their tokens by decreasing q/p."""
    distributions = [np.asarray(each, np.float64) for each in (p, q)]
    if distributions[0].ndim != 2 or distributions[0].shape != distributions[1].shape:
        raise ValueError(
            f"p and q must be [B, V] both, got {distributions[0].shape} and "
            f"{distributions[1].shape}."
        )
    for name, distribution in zip("pq", distributions, strict=True):
        if not (
            (distribution >= 0).all()
            and (abs(distribution.sum(axis=1) - 1) <= _SUM_TOLERANCE).all()
        ):
            raise ValueError(f"Each row of {name} must be >= 0 and sum to 1.")
    if not counts or min(counts) < 1:
        raise ValueError(f"counts must be whole numbers >= 1, got {counts}.")
    p, q = (
        distribution / distribution.sum(axis=1, keepdims=True) for distribution in distributions
    )
    ratios = np.divide(q, p, out=np.where(q > 0, np.inf, 0.0), where=p > 0)
    return p, q, np.argsort(-ratios, axis=1, kind="stable")


def _take(distribution: Float[np.ndarray, "b v"], order: Int[np.ndarray, "b m"]) -> np.ndarray:
    return np.take_along_axis(distribution, order, axis=1)
