"""The best shape of a tree, from measured acceptance by rank.

Notation: p_k (``by_rank``) is the probability that, of a position's guesses, the k-th is the one
that is accepted, whatever the position. A node's score is the probability that it is emitted: the
product of p over its path. A block emits the sum of all scores, plus 1.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np


def best_parents(by_rank: Sequence[float], nodes: int, depth: int) -> tuple[int, ...]:
    """The parents of the ``nodes`` guesses of the highest scores, in the order of levels.

    This is the optimum of Sequoia's dynamic program (Chen et al. 2024, "Sequoia", section 4.1),
    found by always adding the node of the highest score: with p_k that do not rise with k, a node
    never ranks above its parent or its earlier siblings, so the best nodes make a tree.

    Args:
      by_rank: p_1, p_2, ...; as many as a position may have guesses.
      nodes: N, at least 1; fewer where there are no more within ``depth``.
      depth: D, at least 1.
    """
    order = itertools.count()
    # (minus score, tie-breaker, level, parent's number, rank)
    waiting = [(-by_rank[0], next(order), 0, -1, 0)]
    found: list[tuple[int, int]] = []  # Level and parent's number.
    while waiting and len(found) < nodes:
        score, _, level, parent, rank = heapq.heappop(waiting)
        number = len(found)
        found.append((level, parent))
        if rank + 1 < len(by_rank):
            p, following = by_rank[rank : rank + 2]
            sibling = score / p * following if p else 0.0
            heapq.heappush(waiting, (sibling, next(order), level, parent, rank + 1))
        if level + 1 < depth:
            heapq.heappush(waiting, (score * by_rank[0], next(order), level + 1, number, 0))
    # In the order of levels, siblings in the order of ranks.
    by_level = sorted(range(len(found)), key=lambda number: (found[number][0], number))
    index = {number: i for i, number in enumerate(by_level)}
    return tuple(index.get(found[number][1], -1) for number in by_level)


def expected_tokens(by_rank: Sequence[float], parents: Sequence[int]) -> float:
    """Tokens a block emits on average: 1 and the sum of all nodes' scores.

    Of a chain with p_1 = alpha this is Equation 1 of Leviathan et al. 2023. Ranks without a p are
    of score 0.
    """
    scores: list[float] = []
    for i, parent in enumerate(parents):
        rank = list(parents[:i]).count(parent)
        above = 1.0 if parent < 0 else scores[parent]
        scores.append(above * (by_rank[rank] if rank < len(by_rank) else 0.0))
    return 1.0 + sum(scores)


def falling(by_rank: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    """Measured p, lowered where it rises by chance, as :func:`best_parents` needs it."""
    return tuple(float(x) for x in np.minimum.accumulate(np.asarray(by_rank, np.float64)))
