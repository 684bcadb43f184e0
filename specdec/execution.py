"""Speculative execution of two slow functions, of which the second needs a sample of the first.

f gives a distribution, x is drawn from it, and g works on x. While f is still computed, a fast
guess of its distribution gives an x to start g with. Token verification with one guess (Algorithm 1
of Leviathan, Kalman and Matias 2023) then accepts that x, or draws another one, for which g runs
again. So all samples follow f exactly, whatever the guess was. The idea is the paper's section 6.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.core.randomness import BlockRandom, draw, row_keys, seed_words
from specdec.topology import Topology
from specdec.types import Draft, Purpose
from specdec.verifiers.token import TokenVerifier

State = Any  # A pytree of arrays, or whatever the functions take.
_ONE_GUESS, _VERIFIER = Topology.chain(1), TokenVerifier()


@dataclasses.dataclass(frozen=True)
class Link:
    """One f with its guess, and the g that follows. None of them may have side effects.

    g may run for an x that is thrown away. Functions that JAX compiled run at the same time on CPU,
    or where each has a device of its own; others if they release the interpreter's lock.

    Attributes:
      distribution: f, state -> probabilities [V].
      guess: what f is guessed to give, state -> probabilities [V].
      step: g, (state, x) -> the next link's state; x is a number in 0..V-1.
    """

    distribution: Callable[[State], Float[Array, " v"]]
    guess: Callable[[State], Float[Array, " v"]]
    step: Callable[[State, int], State]


@dataclasses.dataclass(frozen=True)
class Executed:
    """What came of a chain of links.

    Attributes:
      state: the last g's.
      samples: every link's x.
      accepted: whether x was the guess; all False without speculation.
      acceptance: sum_x min(p(x), q(x)) of every link, whose mean is alpha (Theorem 3.5); empty
        without speculation.
      seconds: of the whole chain.
    """

    state: State
    samples: list[int]
    accepted: list[bool]
    acceptance: list[float]
    seconds: float

    @property
    def alpha(self) -> float:
        """The mean acceptance probability; NaN without speculation."""
        return float(np.mean(self.acceptance)) if self.acceptance else float("nan")


def speedup(
    alpha: float, distribution: float, guess: float, step: float, *, slowdown: float = 1.0
) -> float:
    """Expected time of a link without speculation over that with it.

    Without: f, then g. With it, f and g of the guess run side by side, and with probability
    1 - alpha g runs again once f is known::

        (f + g) / (alpha s max(f, guess + g) + (1 - alpha) (s f + g))

    s is the slowdown, which plays the part that the cost of verification plays in decoding: 1 where
    f and g have hardware of their own. That is 2 at most, where f and g take equally long and the
    guess is free and always right. A g that is thrown away is taken to end while g runs again.

    Args:
      alpha: how likely a guess is accepted, in [0, 1].
      distribution, guess, step: seconds of f, of its guess, and of g.
      slowdown: how many times as long f and g take side by side.

    Raises:
      ValueError: alpha is outside [0, 1], a time is negative, f and g take no time at all, or the
        slowdown is not above 0.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}.")
    if min(distribution, guess, step) < 0 or distribution + step <= 0:
        raise ValueError(
            f"times must not be negative, nor both 0 for f and g: got {distribution}, {guess} "
            f"and {step}."
        )
    if slowdown <= 0:
        raise ValueError(f"slowdown must be above 0, got {slowdown}.")
    together = slowdown * max(distribution, guess + step)
    return (distribution + step) / (
        alpha * together + (1 - alpha) * (slowdown * distribution + step)
    )


def execute(links: Iterable[Link], state: State, *, seed: int = 0) -> Executed:
    """Runs a chain of links, each from the state that the one before left.

    ``itertools.repeat(link, 100)`` is a control loop of 100 steps. This returns when every g
    has ended, also those that were thrown away; ``seconds`` does not include this last waiting.

    Args:
      state: the first link's.
      seed: of the samples. Runs with the same one are alike.

    Raises:
      ValueError: a link's distribution or guess returned no valid distribution, or theirs have
        different sizes.
      Exception: whatever the functions raise. A g that was thrown away raises nothing.
    """
    keys = _keys(seed)
    samples, accepted, acceptance = [], [], []

    def proposal(i: int, link: Link, state: State) -> tuple[np.ndarray, int]:
        q = _distribution(link.guess(state), i, "guess")
        return q, int(_guess(keys, i, q))

    def step_ahead(link: Link, state: State, proposed: Future[tuple[np.ndarray, int]]) -> State:
        return finished(link.step, state, proposed.result()[1])

    begun = time.perf_counter()
    # f runs in this thread, g of the guess in another one: few changes of thread, which take time
    # while both cores are busy.
    others = [ThreadPoolExecutor(1)]
    try:
        for i, link in enumerate(links):
            proposed = others[-1].submit(proposal, i, link, state)
            ahead = others[-1].submit(step_ahead, link, state, proposed)
            p = _distribution(finished(link.distribution, state), i, "distribution")
            q, guessed = proposed.result()
            if p.shape != q.shape:
                raise ValueError(
                    f"link {i}: distribution gave {p.size} probabilities and guess gave {q.size}; "
                    "they must be of the same samples."
                )
            x, kept, beta = map(np.asarray, _verified(keys, i, p, q, guessed))
            samples.append(int(x))
            accepted.append(bool(kept))
            acceptance.append(float(beta))
            if kept:
                state = ahead.result()
            else:
                # The next link does not wait for the g that is thrown away.
                others[-1].shutdown(wait=False)
                others.append(ThreadPoolExecutor(1))
                state = finished(link.step, state, int(x))
        seconds = time.perf_counter() - begun
    finally:  # Nothing runs after the return.
        for other in others:
            other.shutdown()
    return Executed(state, samples, accepted, acceptance, seconds)


def execute_plainly(links: Iterable[Link], state: State, *, seed: int = 0) -> Executed:
    """The same chain without guesses: f, then g. Arguments and errors are those of execute."""
    keys, samples = _keys(seed), []
    begun = time.perf_counter()
    for i, link in enumerate(links):
        p = _distribution(finished(link.distribution, state), i, "distribution")
        samples.append(int(_drawn(keys, i, p)))
        state = finished(link.step, state, samples[-1])
    return Executed(state, samples, [False] * len(samples), [], time.perf_counter() - begun)


def finished(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, once JAX has computed it."""
    return jax.block_until_ready(function(*args))


def _distribution(values: Any, i: int, name: str) -> np.ndarray:
    """[V] probabilities, checked: an array of this process, on no particular device."""
    found = np.asarray(values, np.float32)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"link {i}: {name} must give probabilities [V], got {found.shape}.")
    if not (np.all(found >= 0) and abs(float(found.sum(dtype=np.float64)) - 1) < 1e-3):
        raise ValueError(
            f"link {i}: {name} must give probabilities, at least 0, that sum to 1; got a sum of "
            f"{found.sum():.6g} and a least one of {found.min():.6g}."
        )
    return found


def _keys(seed: int) -> Array:
    return row_keys(seed_words(seed), jnp.zeros((1,), jnp.int32))


def _random(keys: Array, i: Int[Array, ""]) -> BlockRandom:
    """The numbers of link i."""
    return BlockRandom.of(keys, jnp.full(keys.shape, i))


@jax.jit
def _guess(keys: Array, i: Int[Array, ""], q: Float[Array, " v"]) -> Int[Array, ""]:
    return draw(q[None], _random(keys, i).uniforms(Purpose.PROPOSAL, 1)[:, 0])[0]


@jax.jit
def _drawn(keys: Array, i: Int[Array, ""], p: Float[Array, " v"]) -> Int[Array, ""]:
    return draw(p[None], _random(keys, i).uniforms(Purpose.FINAL, 1)[:, 0])[0]


@jax.jit
def _verified(
    keys: Array, i: Int[Array, ""], p: Float[Array, " v"], q: Float[Array, " v"],
    guessed: Int[Array, ""],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The sample, whether it is the guess, and how likely a guess was accepted."""
    tokens = jnp.asarray(guessed, jnp.int32)[None, None]
    draft = Draft(tokens, q[None, None], _ONE_GUESS)
    # Behind an accepted guess one more token would be drawn; here nothing follows.
    target = jnp.stack([p, p])[None]
    verdict = _VERIFIER(_random(keys, i), target, draft)
    return verdict.tokens[0, 0], verdict.num_accepted[0] == 1, verdict.acceptance_prob[0, 0]
