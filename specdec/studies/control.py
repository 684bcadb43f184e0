"""A control loop to execute speculatively: a double pendulum that a planner swings up.

The planner is f: for each torque it simulates what would follow, and it prefers high ends. Its
guess does the same in fewer, larger steps of time. The simulator is g: it moves the pendulum on.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec.execution import Link

_GRAVITY = 9.81


def _acceleration(state: Float[Array, " 4"], torque: Float[Array, ""]) -> Float[Array, " 4"]:
    """d/dt of (angle, angle, velocity, velocity); rods of 1 m with 1 kg at their ends."""
    a, b, va, vb = state
    sin, cos = jnp.sin(a - b), jnp.cos(a - b)
    # The equations of motion, linear in both accelerations, solved by Cramer's rule.
    first = torque - 2 * _GRAVITY * jnp.sin(a) - vb**2 * sin
    second = va**2 * sin - _GRAVITY * jnp.sin(b)
    scale = 2 - cos**2
    return jnp.stack([va, vb, (first - cos * second) / scale, (2 * second - cos * first) / scale])


def _moved(
    state: Float[Array, " 4"], torque: Float[Array, ""], seconds: float, steps: int
) -> Float[Array, " 4"]:
    """The state after some seconds in so many steps of the classical Runge-Kutta method."""
    h = seconds / steps

    def step(_, x):
        k1 = _acceleration(x, torque)
        k2 = _acceleration(x + h / 2 * k1, torque)
        k3 = _acceleration(x + h / 2 * k2, torque)
        k4 = _acceleration(x + h * k3, torque)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return jax.lax.fori_loop(0, steps, step, state)


def height(state: Float[Array, " 4"]) -> Float[Array, ""]:
    """Of the pendulum's end above the pivot, in lengths of a rod."""
    return -jnp.cos(state[0]) - jnp.cos(state[1])


@dataclasses.dataclass(frozen=True)
class Pendulum:
    """The loop's settings. The steps of planner, guess and simulator determine their times.

    Attributes:
      torques: to choose from, evenly from -strength to strength.
      strength: newton metres.
      interval, horizon: seconds of one decision, and that the planner looks ahead.
      sharpness: of the planner's preference; the logits are this times the height that is reached.
    """

    torques: int = 9
    strength: float = 12.0
    interval: float = 0.1
    horizon: float = 0.6
    sharpness: float = 3.0
    distribution_steps: int = 30_000
    guess_steps: int = 4
    simulator_steps: int = 330_000

    def link(self) -> Link:
        """One decision: planner, guess and simulator, each compiled when first called."""
        return Link(
            jax.jit(functools.partial(self._plan, self.distribution_steps)),
            jax.jit(functools.partial(self._plan, self.guess_steps)),
            jax.jit(self._simulate),
        )

    def start(self) -> Float[Array, " 4"]:
        """At rest, hanging, almost."""
        return jnp.array([0.1, 0.0, 0.0, 0.0])

    def _torque(self, index: Array) -> Float[Array, ...]:
        return self.strength * (2 * index / (self.torques - 1) - 1)

    def _plan(self, steps: int, state: Float[Array, " 4"]) -> Float[Array, " v"]:
        def reached(torque):
            return height(_moved(state, torque, self.horizon, steps))

        heights = jax.vmap(reached)(self._torque(jnp.arange(self.torques)))
        return jax.nn.softmax(self.sharpness * heights)

    def _simulate(self, state: Float[Array, " 4"], index: Array) -> Float[Array, " 4"]:
        return _moved(state, self._torque(index), self.interval, self.simulator_steps)
