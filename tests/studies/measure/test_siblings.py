"""Acceptance of several guesses of one position, against distributions computed one by one."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from tiny import prompt_of

from specdec.core.theory_siblings import independent_optimum, optimum_without_replacement
from specdec.core.topology import Topology
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.drafters.base import DraftParams
from specdec.drafters.model_tree import ModelTreeDrafter
from specdec.models.base import LoadedModel
from specdec.studies.measure import siblings
from specdec.types import Draft, SamplingConfig
from specdec.verifiers.typical import TypicalVerifier
from tests.measure.test_alpha import COUNTS, INPUTS, LENGTH, ROWS, TOKENS, TOY, distributions, table

K = siblings.MOST


@pytest.fixture(scope="module")
def pairs():
    """p and q [B, V] of a small vocabulary, one q with fewer tokens than there are guesses."""
    random = np.random.default_rng(0)
    p, q = random.dirichlet(np.full(5, 0.7), (2, 6)).astype(np.float32)
    q[0, 2:] = 0
    return p, q / q.sum(axis=1, keepdims=True)


class Zeros:
    """Random numbers of which a verdict's acceptance does not depend."""

    def __init__(self, batch):
        self._batch = batch

    def uniforms(self, purpose, count):
        return jnp.zeros((self._batch, count))


def residual(p, q):
    left = np.maximum(p - q, 0)
    return left / left.sum() if left.sum() > 1e-7 else p


def recursive(p, q, count, replaced):
    """By enumeration of all rows of guesses."""
    if not count:
        return 0.0
    accepted = 0.0
    for token in np.flatnonzero(q):
        now, after = min(1.0, p[token] / q[token]), q
        if not replaced:
            after = np.where(np.arange(len(q)) == token, 0, q)
            after = after / max(after.sum(), 1e-30)
        later = recursive(residual(p, q), after, count - 1, replaced)
        accepted += q[token] * (now + (1 - now) * later)
    return accepted


def kseq(p, q, count):
    def beta(rho):
        return np.minimum(q, p / rho).sum()

    rho = brentq(lambda rho: 1 - (1 - beta(rho)) ** count - rho * beta(rho), 1, count + 1e-9)
    return 1 - (1 - beta(rho)) ** count


def test_every_rule_against_its_definition(pairs):
    p, q = pairs
    numbers = np.random.default_rng(1).random((4000, len(p), 4), np.float32)
    found = {rule: np.asarray(each) for rule, each in siblings.acceptance(p, q, numbers).items()}
    for row, (each_p, each_q) in enumerate(zip(*pairs, strict=True)):
        each_p, each_q = each_p.astype(float), each_q.astype(float)
        order = np.argsort(-each_q, kind="stable")
        for k in (1, 2, 3, 4):
            at = row, k - 1
            drawn = recursive(each_p, each_q, k, replaced=False)
            assert found[siblings.DEFAULT][at] == pytest.approx(drawn, abs=0.02 * (k > 1) + 1e-5)
            independent = recursive(each_p, each_q, k, replaced=True)
            assert found[siblings.INDEPENDENT][at] == pytest.approx(independent, abs=1e-5)
            likeliest = each_p[order[:k]].sum()
            assert found[siblings.LIKELIEST][at] == pytest.approx(likeliest, abs=1e-5)
            assert found[siblings.KSEQ][at] == pytest.approx(kseq(each_p, each_q, k), abs=1e-4)
    bound = optimum_without_replacement(p, q, (1, 2, 3, 4))
    assert (found[siblings.DEFAULT] <= bound + 0.02).all()
    bound = independent_optimum(p, q, (1, 2, 3, 4))
    assert (found[siblings.KSEQ] <= bound + 1e-5).all()


@pytest.mark.slow
def test_the_distance_of_typical_acceptance(pairs):
    """The first token's distribution, by enumeration of guesses, as the verifier judges them."""
    found = siblings.typical_distance(*map(jnp.asarray, pairs))
    for row, (p, q) in enumerate(zip(*pairs, strict=True)):
        for k in (1, 2):
            guesses = np.array(list(itertools.product(range(len(q)), repeat=k)))
            chance = q[guesses].prod(axis=1)
            likeliest = np.argsort(-q, kind="stable")[None, :k]
            for rule, tokens, weights in (
                (siblings.TYPICAL_INDEPENDENT, guesses, chance),
                (siblings.TYPICAL_LIKELIEST, likeliest, np.ones(1)),
            ):
                distribution = np.zeros(len(p))
                target = jnp.broadcast_to(p, (len(tokens), k + 1, len(p)))
                draft = Draft(jnp.asarray(tokens), None, Topology.branching((k,)))
                verdict = TypicalVerifier()(Zeros(len(tokens)), target, draft)
                for token, accepted, weight in zip(
                    np.asarray(verdict.tokens)[:, 0], verdict.num_accepted, weights, strict=True
                ):
                    distribution += weight * (np.arange(len(p)) == token if accepted else p)
                distance = abs(distribution - p).sum() / 2
                assert found[rule][row, k - 1] == pytest.approx(distance, abs=1e-5)
    assert found[siblings.TYPICAL_LIKELIEST].max() > 0.1


def test_the_targets_token_is_among_the_guesses_or_not():
    guesses = jnp.asarray([[3, 1, 4], [5, 2, 6], [0, 7, 2]])
    (found,) = siblings.greedy_acceptance(jnp.asarray([1, 4, 0]), guesses).values()
    np.testing.assert_array_equal(found, [[0, 1, 1], [0, 0, 0], [1, 1, 1]])


def decoder(temperature, topology):
    """Of toys: tables are the weights."""
    sampling = SamplingConfig(temperature).traced()
    engine = Engine(TOY, ModelTreeDrafter(TOY, topology))
    params = EngineParams(table(0), sampling, DraftParams(table(1), sampling))
    return BatchDecoder(engine, params, LoadedModel(TOY, table(0), "toy"), LENGTH, 0)


BATCH = Batch(prompt_of(TOY, INPUTS), np.arange(ROWS))
TEXTS = {row: TOKENS[row, :count].tolist() for row, count in enumerate(COUNTS)}


def inside(values):
    return np.concatenate([values[row, :count] for row, count in enumerate(COUNTS)])


def test_what_target_and_draft_say_along_texts():
    given = jnp.asarray(TOKENS), jnp.asarray(COUNTS)
    for temperature in (0.0, 1.0):
        each = decoder(temperature, Topology.branching((3,)))
        found = siblings.replay(each.engine, *each.arguments(BATCH), *given)
        p, q = distributions(table(0)), distributions(table(1))
        if not temperature:
            p, q = p.argmax(-1), np.argsort(-q, axis=-1, kind="stable")[..., :3]
        np.testing.assert_allclose(inside(np.asarray(found.target)), inside(p), atol=1e-6)
        np.testing.assert_allclose(inside(np.asarray(found.draft)), inside(q), atol=1e-6)


def test_each_position_of_texts_in_pieces(monkeypatch):
    monkeypatch.setattr(siblings, "_ROWS", 4)
    found = siblings.replayed(decoder(1.0, Topology.branching((K,))), BATCH, TEXTS)
    p, q = inside(distributions(table(0))), inside(distributions(table(1)))
    for rule, bound in (
        (siblings.OPTIMUM, optimum_without_replacement(p, q, range(1, K + 1))),
        (siblings.INDEPENDENT_OPTIMUM, independent_optimum(p, q, range(1, K + 1))),
    ):
        values = np.concatenate([found[row][rule] for row in range(ROWS)])
        np.testing.assert_allclose(values, bound, atol=1e-5)
    for row, count in enumerate(COUNTS):
        for values in found[row].values():
            assert values.shape == (count, K)
            assert (np.diff(values, axis=1) >= -1e-5).all()
        single = found[row][siblings.OPTIMUM][:, 0]
        rules = (siblings.DEFAULT, siblings.INDEPENDENT, siblings.KSEQ)
        for rule in rules:  # One guess is token verification.
            np.testing.assert_allclose(found[row][rule][:, 0], single, atol=1e-5)


def test_the_draft_is_asked_for_guesses_of_one_position():
    chain = decoder(1.0, Topology.branching((2, 1)))
    with pytest.raises(ValueError, match="one position are needed, these are 2 deep"):
        siblings.replayed(chain, BATCH, TEXTS)


def test_summary():
    ours, best = [0.5, 0.75, 0.75, 1.0] + 4 * [1.0], [0.5, 1.0, 1.0, 1.0] + 4 * [1.0]
    found = {siblings.DEFAULT: np.array([ours, ours]), siblings.OPTIMUM: np.array([best, best])}
    other = {siblings.DEFAULT: np.zeros((2, K)), siblings.OPTIMUM: np.zeros((2, K))}
    rows = [siblings.row_of(0, found), siblings.row_of(1, other)]
    assert rows[0].positions == 2
    assert rows[0].accepted[siblings.DEFAULT][:2] == [1.0, 1.5]
    summary = siblings.summary(rows)
    assert (summary["num_texts"], summary["num_tokens"]) == (2, 4)
    accepted = summary["acceptance"][siblings.DEFAULT]
    assert [accepted[k]["mean"] for k in siblings.COUNTS] == [0.25, 0.375, 0.5, 0.5]
    low, high = accepted[4]["interval"]
    assert low < 0.5 < high
    assert summary["of_optimum"][2]["mean"] == pytest.approx(0.75)
    ranks = [rank["mean"] for rank in summary["by_rank"][siblings.DEFAULT]]
    # Of 4 positions 3 are left, then 2.5, 2.5, and 2.
    np.testing.assert_allclose(ranks, [0.25, 0.5 / 3, 0, 0.5 / 2.5, 0, 0, 0, 0])
    # Where all is accepted no further rank is reached; at temperature 0 there is no bound.
    done = siblings.row_of(0, {siblings.LIKELIEST: np.ones((2, K))})
    summary = siblings.summary([done, dataclasses.replace(done, id=1)])
    assert [rank["mean"] for rank in summary["by_rank"][siblings.LIKELIEST]] == [1.0]
    assert "of_optimum" not in summary
