"""gamma chosen by measurement: c, v(gamma) and alpha on this machine, then theory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec.core import theory
from specdec.core.files import write_json
from specdec.core.randomness import row_keys
from specdec.drafters.base import Drafter
from specdec.measure import costs
from specdec.measure.timing import Work, time_interleaved
from specdec.models.base import Model
from specdec.types import Params, SamplingConfig

CANDIDATES = (1, 2, 3, 4, 5, 7, 10, 15)
PROBE = 3  # The gamma with which c and alpha are measured.
_REPETITIONS = 7
_FILE = "gamma.json"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured on this machine.

    Attributes:
      cost_ratio: c.
      verify_ratio: v by gamma.
      encoders: both encoders' time for a batch over a plain step, (target, draft).
    """

    cost_ratio: float
    verify_ratio: Mapping[int, float]
    encoders: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class GammaChoice:
    """The gamma with the highest predicted speedup; 0 is plain decoding.

    Attributes:
      gamma: what to use.
      predicted: speedup of a whole decode, encoders included, by gamma.
      alpha, cost_ratio, verify_ratio: what it was predicted from.
    """

    gamma: int
    predicted: Mapping[int, float]
    alpha: float
    cost_ratio: float
    verify_ratio: Mapping[int, float]

    def __str__(self) -> str:
        best = max(self.predicted, key=lambda gamma: self.predicted[gamma])
        measured = (
            f"alpha {self.alpha:.2f}, c {self.cost_ratio:.2f}, "
            f"v({best}) {self.verify_ratio[best]:.2f} measured here"
        )
        if self.gamma:
            return f"gamma {self.gamma}: {self.predicted[self.gamma]:.2f} x predicted ({measured})."
        return (
            f"Speculation does not pay here: the best gamma, {best}, is predicted to be "
            f"{self.predicted[best]:.2f} times as fast as plain decoding ({measured}). "
            "Decoding plainly."
        )


def choose(alpha: float, tokens: float, measured: Costs) -> GammaChoice:
    """The gamma that maximises the predicted speedup of a whole decode.

    (e_t + n) / (e_t + e_d + n / s(gamma)), in plain steps, where s is
    (1 - alpha^(gamma+1)) / (1 - alpha) / (gamma c + v(gamma)), n the tokens of a row and e_t, e_d
    the encoders' times.

    Args:
      tokens: n.
    """
    target, draft = measured.encoders

    def whole(gamma: int, v: float) -> float:
        decoder = theory.speedup(alpha, gamma, measured.cost_ratio, v)
        return (target + tokens) / (target + draft + tokens / decoder)

    predicted = {gamma: whole(gamma, v) for gamma, v in measured.verify_ratio.items()}
    best = max(predicted, key=lambda gamma: predicted[gamma])
    return GammaChoice(
        gamma=best if predicted[best] > 1 else 0,
        predicted=predicted,
        alpha=alpha,
        cost_ratio=measured.cost_ratio,
        verify_ratio=measured.verify_ratio,
    )


def measure(
    model: Model,
    params: Params,
    drafter: Callable[[int], Drafter],
    drafter_params: Params,
    inputs: Int[Array, "b s"],
    *,
    sampling: SamplingConfig,
    output_bucket: int,
    max_gamma: int,
) -> Costs:
    """Measures c and v on inputs of the shape that will be decoded.

    Args:
      drafter: makes one for a gamma.
      max_gamma: candidates beyond it are left out.
    """
    probe = min(PROBE, max_gamma)
    keys = row_keys(0, jnp.arange(len(inputs)))
    encoded = costs.encode(model, params, inputs)
    probing = drafter(probe)
    state = costs.init_drafter(probing, drafter_params, inputs, output_bucket, encoded)

    def target_calls(gamma: int) -> Callable[[], object]:
        return lambda: costs.target_calls(
            model, params, encoded, keys,
            gamma=gamma, sampling=sampling, output_bucket=output_bucket,
        )  # fmt: skip

    def drafted_calls():
        return costs.drafted_calls(
            model, probing, params, drafter_params, encoded, state, keys,
            sampling=sampling, output_bucket=output_bucket,
        )  # fmt: skip

    gammas = [gamma for gamma in CANDIDATES if gamma <= max_gamma]
    works = [Work(str(gamma), target_calls(gamma), None) for gamma in {0, probe, *gammas}]
    works += [
        Work("drafted", drafted_calls, None),
        Work("target", lambda: costs.encode(model, params, inputs), None),
        Work(
            "draft",
            lambda: costs.init_drafter(probing, drafter_params, inputs, output_bucket, encoded),
            None,
        ),
    ]
    times = time_interleaved(works, _REPETITIONS)

    def ratio(name: str, less: str | None = None) -> float:
        """Over a loop of plain steps, in each repetition."""
        return statistics.median((t[name] - (t[less] if less else 0.0)) / t["0"] for t in times)

    return Costs(
        cost_ratio=max(0.0, ratio("drafted", str(probe)) / probe),
        verify_ratio={gamma: ratio(str(gamma)) for gamma in gammas},
        encoders=(ratio("target") * costs.STEPS, ratio("draft") * costs.STEPS),
    )


def remembered(directory: Path, key: str) -> GammaChoice | None:
    """The choice made before for ``key``, if any can be read."""
    try:
        found = json.loads((directory / _FILE).read_text())[key]
        for name in ("predicted", "verify_ratio"):
            found[name] = {int(gamma): value for gamma, value in found[name].items()}
        return GammaChoice(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(directory: Path, key: str, choice: GammaChoice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        path = directory / _FILE
        try:
            known = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            known = {}
        known[key] = dataclasses.asdict(choice)
        write_json(path, known)
