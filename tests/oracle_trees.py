"""Where verifiers of trees decide, in fractions: the cells of the oracle's grid.

Written from the formulas in the verifiers' docstrings and independently of their code. Rows are
distributions, tuples of fractions; a grid has all numbers in (0, 1) at which some decision changes,
for all distributions that may come up.
"""

import itertools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from oracle_cases import CONTEXTS

from specdec.core.topology import Topology
from specdec.testing.oracle import Grid

ONE = Fraction(1)
FIRST = 1e-5  # In the first cell, and above what rounding leaves of nothing.


def rolled(numerators, denominator, seed):
    """Logits [C, 3] of one distribution, its tokens' places rotated at random in each context."""
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(np.array(numerators) / denominator), -1e9)
    turns = np.random.default_rng(seed).integers(len(numerators), size=CONTEXTS)
    rows = [np.roll(logits, turn) for turn in turns]
    return jnp.asarray(np.stack(rows), jnp.float32)


def fractions_of(table):
    """The distinct distributions of a table of logits."""
    rows = np.exp(np.asarray(table, np.float64))
    return {tuple(Fraction(x).limit_denominator(24) for x in row) for row in rows}


def norm(row):
    total = sum(row)
    return tuple(x / total for x in row)


def without(row, token):
    """A draft's distribution when a token was drawn, without replacement."""
    left = tuple(0 if i == token else x for i, x in enumerate(row))
    return norm(left) if sum(left) else left


def cumulative(row):
    return {sum(row[: i + 1]) for i in range(len(row))}


def grid(proposal, acceptance, final):
    inside = [tuple(float(x) for x in each if 0 < x < 1) for each in (acceptance, final)]
    return Grid(proposal, *(each or 1 for each in inside), first=FIRST)


def recursive_grid(targets, drafts, siblings, proposal, independent, *, several=False):
    """Of one node's siblings, whatever their distributions and tokens.

    Args:
      several: whether each sibling is of another draft, and so of any of the distributions.
    """
    acceptance, final = set(), set()
    for p in targets:
        final |= cumulative(p)
    states = {(p, q, ONE) for p in targets for q in drafts}
    for _ in range(siblings):
        after = set()
        for p, q, survival in states:
            for x in range(len(p)):
                if not q[x]:
                    continue
                left = survival * (1 - min(ONE, p[x] / q[x]))
                acceptance.add(1 - left)
                rest = tuple(max(a - b, 0) for a, b in zip(p, q, strict=True))
                if left and sum(rest):
                    final |= cumulative(norm(rest))
                    following = drafts if several else [q if independent else without(q, x)]
                    after |= {(norm(rest), then, left) for then in following}
        states = after
    return grid(proposal, acceptance, final)


def traversal_grid(targets, drafts, tree: Topology, proposal, independent):
    """Of a whole tree: one number decides between all its nodes."""
    acceptance, final = set(), set()

    def judged(node, w, r, survival):
        """What a node may be left with when all guesses after it were rejected."""
        children = [i for i, parent in enumerate(tree.parents) if parent == node]
        final.update(cumulative(r))
        found = set()
        for q in drafts if children else [None]:
            states = {(w, r, survival, q)}
            for child in children:
                states = {s for state in states for s in rejected(child, *state)}
            found |= {state[:3] for state in states}
        return found

    def rejected(child, w, r, survival, q):
        for x, p in itertools.product(range(len(r)), targets):
            if not q[x]:
                continue
            for own, distribution, before in judged(child, min(ONE, w * r[x] / q[x]), p, survival):
                final.update(cumulative(distribution))
                left = before * (1 - own)
                acceptance.add(1 - left)
                rest = tuple(max(w * a - b, 0) for a, b in zip(r, q, strict=True))
                mass, after = sum(rest), q if independent else without(q, x)
                if left and mass:
                    yield mass / (mass + 1 - w), norm(rest), left, after
                elif left and w < 1:
                    yield 0 * ONE, r, left, after

    for p in targets:
        for _, distribution, _ in judged(-1, ONE, p, ONE):
            final.update(cumulative(distribution))
    return grid(proposal, acceptance, final)


def kseq_grid(targets, drafts, siblings, proposal):
    """Of independent siblings; rho is no fraction."""
    acceptance, final = set(), set()
    for p, q in itertools.product(targets, drafts):
        final |= cumulative(p)
        p, q = (np.array(row, float) for row in (p, q))
        for count in range(1, siblings + 1):
            low, high = 1.0, float(count)
            for _ in range(60):
                rho = (low + high) / 2
                beta = np.minimum(q, p / rho).sum()
                low, high = (low, rho) if 1 - (1 - beta) ** count <= rho * beta else (rho, high)
            overlap = np.minimum(q, p / high)
            beta = overlap.sum()
            passes = [min(1.0, a / (high * b)) for a, b in zip(p, q, strict=True) if b]
            for several in itertools.product(passes, repeat=count):
                left = np.cumprod([1 - each for each in several])
                acceptance |= {1 - each for each in left}
            if beta:
                rest = np.maximum(p - (1 - (1 - beta) ** count) / beta * overlap, 0)
                rest[rest < 1e-9] = 0
                if rest.sum():
                    final |= set(np.cumsum(rest / rest.sum()))

    def apart(found):
        return {round(float(x), 7) for x in found}

    return grid(proposal, apart(acceptance), apart(final))


def block_grid(targets, drafts, gamma, proposal):
    """Of block verification of chains, from its docstring."""
    acceptance, final, reaches = set(), set(), {ONE}
    for p in targets:
        final |= cumulative(p)
    for level in range(1, gamma + 1):
        reaches = {
            min(ONE, reach * p[x] / q[x])
            for reach in reaches
            for p, q in itertools.product(targets, drafts)
            for x in range(len(p))
            if q[x]
        }
        for reach, p, q in itertools.product(reaches, targets, drafts):
            rest = tuple(max(reach * a - b, 0) for a, b in zip(p, q, strict=True))
            mass = sum(rest)
            if mass + 1 - reach:
                acceptance.add(mass / (mass + 1 - reach))
            if mass:
                final |= cumulative(norm(rest))
        acceptance |= reaches if level == gamma else set()
    for p, q in itertools.product(targets, drafts):
        rest = tuple(max(a - b, 0) for a, b in zip(p, q, strict=True))
        if sum(rest):
            final |= cumulative(norm(rest))
    return grid(proposal, acceptance, final)
