"""The bounds on several guesses, against linear programs and all sets of tokens."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from specdec.core.theory_siblings import independent_optimum, optimum_without_replacement

BOUNDS = {"independent": independent_optimum, "without replacement": optimum_without_replacement}


def distributions(vocab, count, seed=0, concentrations=(0.1, 0.5, 2.0)):
    """Pairs of distributions, some with tokens that one of them lacks."""
    random = np.random.default_rng(seed)
    for number in range(count):
        p, q = (random.dirichlet(np.full(vocab, random.choice(concentrations))) for _ in range(2))
        if number % 3:
            distribution = (p, q)[number % 2]
            distribution[number % vocab] = 0
            distribution /= distribution.sum()
        yield p, q


def guesses(q, count, kind):
    """Each possible row of guesses with its probability; fewer where q has fewer tokens."""
    tokens = np.flatnonzero(q)
    if kind == "independent":
        for row in itertools.product(tokens, repeat=count):
            yield row, np.prod(q[list(row)])
        return
    for row in itertools.permutations(tokens, min(count, len(tokens))):
        left = [sum(q[x] for x in tokens if x not in row[:index]) for index in range(len(row))]
        yield row, np.prod([q[x] / rest for x, rest in zip(row, left, strict=True)])


def linear_program(p, q, count, kind):
    """max P(the output is one of the guesses) over joint distributions of guesses and output."""
    rows = list(guesses(q, count, kind))
    size, vocab = len(rows), len(p)
    gain = np.array([[float(y in row) for y in range(vocab)] for row, _ in rows])
    of_rows = np.kron(np.eye(size), np.ones(vocab))
    of_output = np.kron(np.ones(size), np.eye(vocab))
    # At most the distributions: what is missing from them can be joined in any way, for a gain of
    # 0.
    found = linprog(
        -gain.ravel(), A_ub=np.vstack([of_rows, of_output]),
        b_ub=np.concatenate([[weight for _, weight in rows], p]),
    )  # fmt: skip
    assert found.status == 0, found.message
    return -found.fun


def over_all_sets(p, q, count, kind):
    rows = list(guesses(q, count, kind))

    def cut(chosen):
        inside = sum(weight for row, weight in rows if set(row) <= chosen)
        return sum(p[x] for x in chosen) + 1 - inside

    tokens = range(len(p))
    sets = (set(c) for size in range(len(p) + 1) for c in itertools.combinations(tokens, size))
    return min(map(cut, sets))


@pytest.mark.parametrize("kind", BOUNDS)
def test_the_bound_is_the_optimum_of_the_linear_program(kind):
    for p, q in distributions(4, 12):
        found = BOUNDS[kind](p[None], q[None], (1, 2, 3))[0]
        wanted = [linear_program(p, q, count, kind) for count in (1, 2, 3)]
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", BOUNDS)
def test_prefixes_are_enough_sets(kind):
    for p, q in distributions(5, 30, seed=1):
        found = BOUNDS[kind](p[None], q[None], (1, 2, 3, 4))[0]
        wanted = [over_all_sets(p, q, count, kind) for count in (1, 2, 3, 4)]
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("sharpness", [0.0, 0.9, 1 - 1e-7])
def test_two_guesses_without_replacement_of_a_large_vocabulary(sharpness):
    """P(both in H) = sum over x in H of q(x) q(H without x) / (1 - q(x))."""
    for p, q in distributions(4096, 4, seed=2, concentrations=(0.02, 0.3, 3.0)):
        p, q = (p + q) / 2, (1 - sharpness) * q
        q[7] += sharpness
        q /= q.sum()
        order = np.argsort(-np.divide(q, p, out=np.zeros_like(q), where=p > 0), kind="stable")
        in_p, ordered = np.cumsum(p[order]), q[order]
        rest = np.array([np.delete(q, token).sum() for token in order])
        both = np.cumsum(ordered) * np.cumsum(ordered / rest) - np.cumsum(ordered**2 / rest)
        found = optimum_without_replacement(p[None], q[None], (2,))
        assert found[0, 0] == pytest.approx(min(1, (in_p + 1 - both).min()), abs=1e-6)


def test_a_token_that_is_drawn_only_when_the_others_are_gone():
    p, q = np.array([[0.5, 0.1, 0.4]]), np.array([[3e-6, 8e-23, 1.0]])
    found = optimum_without_replacement(p, q, (1, 2, 3))
    np.testing.assert_allclose(found, [[0.400003, 0.9, 1.0]], atol=1e-6)


def test_rows_of_every_kind_together():
    """More rows than are computed together, each as alone; one guess is sum min(p, q)."""
    pairs = [*distributions(9, 60), *distributions(9, 60, seed=4, concentrations=(0.02, 20.0))]
    p, q = (np.stack(each) for each in zip(*pairs, strict=True))
    counts = (1, 2, 8)
    for bound in BOUNDS.values():
        together = bound(p, q, counts)
        alone = [bound(each_p[None], each_q[None], counts)[0] for each_p, each_q in pairs]
        np.testing.assert_allclose(together, alone, atol=1e-6)
        np.testing.assert_allclose(together[:, 0], np.minimum(p, q).sum(axis=1), atol=1e-6)
        assert (np.diff(together, axis=1) >= -1e-9).all()
    more = optimum_without_replacement(p, q, counts) - independent_optimum(p, q, counts)
    assert (more > -1e-6).all()
    assert more.max() > 0.01


@pytest.mark.usefixtures("own_errors")
@pytest.mark.parametrize("bound", BOUNDS.values())
def test_bad_arguments(bound):
    p = np.full((1, 4), 0.25)
    with pytest.raises(ValueError, match=r"\[B, V\] both, got \(1, 4\) and \(1, 3\)"):
        bound(p, np.full((1, 3), 1 / 3), (1,))
    with pytest.raises(ValueError, match="Each row of q must be >= 0 and sum to 1"):
        bound(p, 2 * p, (1,))
    with pytest.raises(ValueError, match="counts must be whole numbers >= 1"):
        bound(p, p, (0,))
