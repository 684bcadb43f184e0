"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

import optax

from specdec.core.fields import Above0, Count, checked

_LAST_RATE = 0.05  # Of the peak.


@checked()
class OptimizerOptions:
    """Adam behind a global-norm clip, whose rate warms up linearly, then falls as a cosine.

    Attributes:
      peak_learning_rate: reached after ``warmup_steps``; a step's size as a share of the RMS of
        each parameter.
    """

    peak_learning_rate: Above0 = 1e-2
    warmup_steps: Count = 200


def make_optimizer(options: OptimizerOptions, total_steps: int) -> optax.GradientTransformation:
    """The optimizer that ``options`` describe; ValueError if the warm-up takes all steps."""
    warmup = options.warmup_steps
    if warmup >= total_steps:
        raise ValueError(f"warmup_steps={warmup} must be in [1, total_steps={total_steps}).")
    rate = optax.warmup_cosine_decay_schedule(
        0.0, options.peak_learning_rate, warmup, total_steps,
        end_value=_LAST_RATE * options.peak_learning_rate,
    )  # fmt: skip
    # T5 folds 1/sqrt(K) into the query's initialisation, so its parameters differ widely in
    # scale: plain Adam, whose steps are all alike, diverges at the rate the others need.
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b1=0.9, b2=0.98),
        optax.scale_by_param_block_rms(),
        optax.scale_by_learning_rate(rate),
    )
