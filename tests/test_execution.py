"""Speculative execution: distribution of the samples, which g's result is kept, errors, sums."""

import itertools
import threading
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec import execution
from specdec.execution import Link, execute, execute_plainly, speedup
from specdec.studies.control import Pendulum, height

# By state: f's distribution, and a guess of it that is wrong in places, or even impossible.
DISTRIBUTION = np.array([[4, 2, 2], [0, 4, 4], [1, 6, 1]]) / 8
GUESS = np.array([[2, 2, 4], [4, 4, 0], [1, 6, 1]]) / 8
FALSE_ALARM = 1e-4  # Of each chi-square test, whose seeds are fixed.


def walk(state, x):
    """The next state depends on both, so that a g of another x shows."""
    return (2 * state + x) % 3


WALK = Link(lambda state: DISTRIBUTION[state], lambda state: GUESS[state], walk)
LINKS, CHAINS = 3, 2000


def chains(run):
    """The samples of many chains, [CHAINS, LINKS]."""
    return np.array([
        run(itertools.repeat(WALK, LINKS), 0, seed=seed).samples for seed in range(CHAINS)
    ])  # fmt: skip


def expected():
    """The probability of each chain of samples."""
    found = {}
    for samples in itertools.product(range(3), repeat=LINKS):
        state, weight = 0, 1.0
        for x in samples:
            weight *= DISTRIBUTION[state][x]
            state = walk(state, x)
        found[samples] = weight
    return found


def p_value(samples):
    """Of the chains that may occur; 0 if one occurred that may not."""
    distribution, counts = expected(), Counter(map(tuple, samples.tolist()))
    if any(distribution[each] == 0 for each in counts):
        return 0.0
    possible = [each for each in distribution if distribution[each] > 0]
    observed = [counts[each] for each in possible]
    return stats.chisquare(observed, [CHAINS * distribution[each] for each in possible]).pvalue


@pytest.mark.parametrize("run", [execute, execute_plainly])
def test_chains_follow_the_distribution(run):
    assert p_value(chains(run)) > FALSE_ALARM


@pytest.mark.slow
def test_a_mutant_that_keeps_every_guess_is_caught(monkeypatch):
    monkeypatch.setattr(execution, "_verified", lambda keys, i, p, q, guessed: (guessed, True, 1.0))
    assert p_value(chains(execute)) < 1e-9


def test_a_mutant_that_draws_corrections_from_p_is_caught(monkeypatch):
    honest = execution._verified

    def broken(keys, i, p, q, guessed):
        x, kept, beta = honest(keys, i, p, q, guessed)
        return (x if kept else execution._drawn(keys, i, p)), kept, beta

    monkeypatch.setattr(execution, "_verified", broken)
    assert p_value(chains(execute)) < 1e-9


@pytest.mark.parametrize("run", [execute, execute_plainly])
def test_each_state_is_made_of_the_sample_that_is_told(run):
    told = run(itertools.repeat(WALK, 50), 0, seed=3)
    state = 0
    for x in told.samples:
        state = walk(state, x)
    assert told.state == state
    if run is execute:
        assert 0 < sum(told.accepted) < 50
        assert told.alpha == pytest.approx(np.mean(told.acceptance))
    else:
        assert not any(told.accepted)
        assert np.isnan(told.alpha)


def test_acceptance_is_theorem_3_5s():
    told = execute([WALK], 0)
    assert told.acceptance == [pytest.approx(np.minimum(DISTRIBUTION[0], GUESS[0]).sum())]


def test_links_of_a_chain_may_differ():
    certain = [
        Link(lambda _, x=x: np.eye(4)[x], lambda _, y=y: np.eye(4)[y], lambda s, x: [*s, x])
        for x, y in ((2, 2), (0, 3), (1, 1))
    ]
    told = execute(certain, [])
    assert told.samples == told.state == [2, 0, 1]
    assert told.accepted == [True, False, True]


def test_the_step_of_a_guess_runs_while_the_law_is_computed():
    begun = threading.Event()

    def distribution(_):
        assert begun.wait(30), "g did not start before f ended"
        return [1.0, 0.0]

    def step(state, _):
        begun.set()
        return state

    assert execute([Link(distribution, lambda _: [0.5, 0.5], step)], "kept").state == "kept"


def test_the_next_link_does_not_wait_for_what_is_thrown_away():
    over, ended, waited = threading.Event(), threading.Event(), []

    def step(_, x):
        if x == 1:
            waited.append(over.wait(20))
            time.sleep(0.2)
            ended.set()
        return x

    first = Link(lambda _: [1.0, 0.0], lambda _: [0.0, 1.0], step)
    second = Link(lambda _: [1.0, 0.0], lambda _: [1.0, 0.0], lambda *_: over.set())
    execute([first, second], None)
    assert waited == [True]
    assert ended.is_set(), "g still runs after the return"


def test_what_is_thrown_away_raises_nothing():
    def step(_, x):
        if x == 1:
            raise RuntimeError("a state that f excludes")
        return x

    told = execute([Link(lambda _: [1.0, 0.0], lambda _: [0.0, 1.0], step)], None)
    assert told.state == 0
    with pytest.raises(RuntimeError, match="f excludes"):
        execute([Link(lambda _: [0.0, 1.0], lambda _: [0.0, 1.0], step)], None)


@pytest.mark.parametrize(
    ("distribution", "guess", "words"),
    [
        (
            [0.5, 0.6],
            [0.5, 0.5],
            "link 0: distribution must give probabilities, at least 0, that sum to 1",
        ),
        ([1.5, -0.5], [0.5, 0.5], "a least one of -0.5"),
        ([0.5, 0.5], [np.nan, 1.0], "link 0: guess must give probabilities"),
        ([0.5, 0.5], [1.0, 0.0, 0.0], "distribution gave 2 probabilities and guess gave 3"),
        ([[1.0]], [1.0], r"distribution must give probabilities \[V\], got \(1, 1\)"),
    ],
)
def test_what_is_no_distribution(distribution, guess, words):
    with pytest.raises(ValueError, match=words):
        execute([Link(lambda _: distribution, lambda _: guess, lambda s, x: s)], None)


def test_the_arithmetic():
    assert speedup(1, 1, 0, 1) == 2
    assert speedup(0, 3, 1, 2) == 1
    assert speedup(0.5, 2, 1, 2) == pytest.approx(4 / (0.5 * 3 + 0.5 * 4))
    assert speedup(0.5, 2, 1, 2, slowdown=1.5) == pytest.approx(4 / (0.5 * 4.5 + 0.5 * 5))
    assert speedup(1, 1, 5, 1) < 1  # A guess that is slower than f.


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((1.1, 1, 1, 1), "alpha must be"), ((0.5, -1, 0, 1), "times must not be negative"),
        ((0.5, 0, 0, 0), "nor both 0"),
    ],
)  # fmt: skip
def test_arithmetic_of_what_cannot_be(args, words):
    with pytest.raises(ValueError, match=words):
        speedup(*args)


def test_a_slowdown_of_nothing():
    with pytest.raises(ValueError, match="slowdown must be above 0, got 0"):
        speedup(0.5, 1, 1, 1, slowdown=0)


def test_the_pendulum_keeps_its_energy_and_its_guess_is_a_good_one():
    """Without a torque; energy per kilogram, from the heights and speeds of both ends."""
    pendulum = Pendulum(distribution_steps=400, simulator_steps=400)
    link = pendulum.link()

    def energy(state):
        a, b, va, vb = map(float, state)
        kinetic = va**2 + vb**2 / 2 + va * vb * np.cos(a - b)
        return kinetic - 9.81 * (2 * np.cos(a) + np.cos(b))

    state = jnp.array([2.0, 2.5, 0.0, 0.0])
    moved = link.step(state, (pendulum.torques - 1) // 2)
    assert abs(float(moved[2])) > 0.1
    assert energy(moved) == pytest.approx(energy(state), rel=1e-4)
    told = execute(itertools.repeat(link, 30), pendulum.start(), seed=1)
    assert 0.7 < told.alpha < 1
    again = execute(itertools.repeat(link, 30), pendulum.start(), seed=1)
    assert told.samples == again.samples
    assert -2 <= float(height(told.state)) <= 2
    assert isinstance(told.state, jax.Array)


def test_the_pendulums_torques_follow_the_planner():
    """The first one's of many loops, whose planner and guess differ enough to be told apart."""
    pendulum = Pendulum(distribution_steps=400, guess_steps=2, simulator_steps=4)
    link, start = pendulum.link(), jnp.array([1.0, 2.0, 5.0, 0.0])
    told = [execute([link], start, seed=seed) for seed in range(3000)]
    counts = np.bincount([each.samples[0] for each in told], minlength=pendulum.torques)
    distribution, guess = (
        np.asarray(f(start), np.float64) for f in (link.distribution, link.guess)
    )
    assert stats.chisquare(counts, 3000 * distribution / distribution.sum()).pvalue > FALSE_ALARM
    assert stats.chisquare(counts, 3000 * guess / guess.sum()).pvalue < 1e-9
    assert sum(each.accepted[0] for each in told) < 3000
