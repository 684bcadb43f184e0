"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

from typing import Annotated, Literal

import jax.numpy as jnp
import optax

from specdec.core.fields import ABOVE_0, Count, Real, checked

Above0 = Annotated[float, Real("a number above 0", ABOVE_0)]
Fraction = Annotated[float, Real("a number in [0, 1]", 0, 1)]


@checked()
class OptimizerOptions:
    """AdamW or Adafactor behind a global-norm clip, linear warm-up, then decay.

    Attributes:
      name: both take steps relative to the RMS of each parameter.
      peak_learning_rate: reached after ``warmup_steps``; a step's size as a share of that RMS.
      schedule: "cosine" falls to ``final_fraction`` of the peak at the last step; "rsqrt" falls
        as 1/sqrt(step).
      b1, b2, weight_decay: AdamW's; Adafactor uses only ``weight_decay``.
      clip_norm: the gradient's global norm is scaled down to at most this.
    """

    name: Literal["adamw", "adafactor"] = "adamw"
    peak_learning_rate: Above0 = 1e-2
    warmup_steps: Count = 200
    schedule: Literal["cosine", "rsqrt"] = "cosine"
    final_fraction: Fraction = 0.05
    b1: Fraction = 0.9
    b2: Fraction = 0.98
    weight_decay: Fraction = 0.0
    clip_norm: Above0 = 1.0


def learning_rate(options: OptimizerOptions, total_steps: int) -> optax.Schedule:
    """Learning rate by step; ValueError if the warm-up exceeds ``total_steps``."""
    warmup, peak = options.warmup_steps, options.peak_learning_rate
    if not 1 <= warmup < total_steps:
        raise ValueError(f"warmup_steps={warmup} must be in [1, total_steps={total_steps}).")
    if options.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(
            0.0, peak, warmup, total_steps, end_value=peak * options.final_fraction
        )
    return lambda step: peak * jnp.minimum(step / warmup, jnp.sqrt(warmup / jnp.maximum(step, 1)))


def make_optimizer(options: OptimizerOptions, total_steps: int) -> optax.GradientTransformation:
    """The optimizer that ``options`` describe; ValueError if it or its schedule is unknown."""
    schedule = learning_rate(options, total_steps)
    if options.name == "adamw":
        # T5 folds 1/sqrt(K) into the query's initialisation, so its parameters differ widely in
        # scale: plain Adam, whose steps are all alike, diverges at the rate the others need.
        update = optax.chain(
            optax.scale_by_adam(options.b1, options.b2),
            optax.scale_by_param_block_rms(),
            optax.add_decayed_weights(options.weight_decay),
            optax.scale_by_learning_rate(schedule),
        )
    elif options.name == "adafactor":
        update = optax.adafactor(schedule, weight_decay_rate=options.weight_decay or None)
    else:
        raise ValueError(f"optimizer must be 'adamw' or 'adafactor', got {options.name!r}.")
    return optax.chain(optax.clip_by_global_norm(options.clip_norm), update)
