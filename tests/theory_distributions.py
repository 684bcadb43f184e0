"""What theory says of two distributions: acceptance, rejection sampling, lenience.

Notation: p the target's and q the draft's distribution of the next token, l (``lenience``); "the
paper" is Leviathan, Kalman and Matias 2023.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

SUM_TOLERANCE = 1e-3  # A distribution's sum may miss 1 by this: float32, a large vocabulary.


def lk_divergence(
    p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"]
) -> Float[np.ndarray, ...]:
    """D_LK(p, q) = sum_x |p(x) - (p(x) + q(x))/2| = 1 - sum_x min(p(x), q(x)).

    Source: the paper's Definition 3.2 and Lemma 3.3. It is the total variation distance: 0 where
    p = q, 1 where no token has both. A guess is accepted with probability 1 - D_LK (Theorem 3.5).

    Args:
      p, q: [..., V] distributions.

    Raises:
      ValueError: their shapes differ, or something is not a distribution over the last axis.
    """
    p, q = _distributions(p, q)
    return np.abs(p - (p + q) / 2).sum(-1)


def alpha_of(p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"]) -> float:
    """alpha = 1 - E[D_LK(p, q)], the mean over all leading axes.

    Source: the paper's Corollary 3.6. Arguments and errors as in :func:`lk_divergence`.
    """
    return 1 - float(lk_divergence(p, q).mean())


def rejection_acceptance(
    p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"]
) -> Float[np.ndarray, ...]:
    """How often plain rejection sampling accepts a guess: min of q(x)/p(x) over p(x) > 0.

    Source: the paper's appendix A.2. Rejection sampling accepts x ~ q with probability
    p(x) / (M q(x)), and M = max_x p(x)/q(x) is the least that makes it one; so 1/M in all. Never
    more than speculative sampling: sum_x p(x)/M <= sum_x p(x) min(1, q(x)/p(x)) = 1 - D_LK.
    Degenerate case: 0 where q lacks a token of p.

    Arguments and errors as in :func:`lk_divergence`.
    """
    p, q = _distributions(p, q)
    ratios = np.divide(q, p, out=np.full_like(p, np.inf), where=p > 0)
    return ratios.min(-1)


def lenient_acceptance(
    p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"], lenience: float
) -> Float[np.ndarray, ...]:
    """Acceptance with lenience, sum_x min(q(x), p(x)/l).

    Source: the paper's appendix A.5: a guess is accepted with probability min(1, p/(l q)). At
    l = 1 it is 1 - D_LK; it grows as l falls, to the share of q on p's support.

    Args:
      p, q: [..., V] distributions.
      lenience: l in (0, 1], 1 = exact.

    Raises:
      ValueError: as :func:`lk_divergence`, or l outside (0, 1].
    """
    _check_lenience(lenience)
    p, q = _distributions(p, q)
    return np.minimum(q, p / lenience).sum(-1)


def lenient_distribution(
    p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"], lenience: float
) -> Float[np.ndarray, "... v"]:
    """The distribution of the emitted token: min(q, p/l) + (1 - sum min(q, p/l)) norm(max(0, p -
    q)).

    Source: the paper's appendix A.5. At l = 1, and where p = q, it is p. No token exceeds
    :func:`lenient_bound`: where q < p it stays below p, since the residual is drawn no more often
    than at l = 1.

    Arguments and errors as in :func:`lenient_acceptance`.
    """
    _check_lenience(lenience)
    p, q = _distributions(p, q)
    rejected = np.maximum(q - p / lenience, 0).sum(-1, keepdims=True)
    residual = np.maximum(p - q, 0)
    mass = residual.sum(-1, keepdims=True)
    # Where p = q nothing is rejected and nothing divided.
    return np.minimum(q, p / lenience) + residual * (rejected / np.where(mass > 0, mass, 1))


def lenient_bound(p: Float[np.ndarray, "... v"], lenience: float) -> Float[np.ndarray, "... v"]:
    """No token is emitted with a probability above this, min(1, p/l).

    Source: the paper's appendix A.5. [..., V]; raises ValueError for l outside (0, 1].
    """
    _check_lenience(lenience)
    return np.minimum(1.0, np.asarray(p, np.float64) / lenience)


def lenient_distance(
    p: Float[np.ndarray, "... v"], q: Float[np.ndarray, "... v"], lenience: float
) -> Float[np.ndarray, ...]:
    """Total variation of :func:`lenient_distribution` from p, for one token after the same text.

    The distribution exceeds p only where q does, by min(q, p/l) - p. Summed, this is what lenience
    adds to the acceptance: lenient_acceptance(l) - lenient_acceptance(1). Each point of alpha that
    lenience gains is a point of distance.

    Arguments and errors as in :func:`lenient_acceptance`.
    """
    _check_lenience(lenience)
    p, q = _distributions(p, q)
    return np.maximum(np.minimum(q, p / lenience) - p, 0).sum(-1)


def _check_lenience(lenience: float) -> None:
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience must be in (0, 1], got {lenience}.")


def _distributions(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in float64, known to be distributions of one shape."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if p.shape != q.shape:
        raise ValueError(f"p and q must have one shape, got {p.shape} and {q.shape}.")
    for name, distribution in (("p", p), ("q", q)):
        if distribution.size == 0:
            raise ValueError(f"{name} is empty, of shape {distribution.shape}.")
        if not (distribution >= 0).all():
            raise ValueError(f"{name} must be >= 0 everywhere, got {distribution.min()}.")
        sums = distribution.sum(-1)
        if np.abs(sums - 1).max() > SUM_TOLERANCE:
            raise ValueError(
                f"{name} must sum to 1 over the last axis, got {sums.min()} to {sums.max()}."
            )
    return p, q
