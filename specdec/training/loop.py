"""The training loop that all recipes share."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from specdec.core.fields import Count, Whole, checked
from specdec.core.progress import Progress, say
from specdec.core.signals import stop_request
from specdec.training.batching import Batches
from specdec.training.checkpointing import checkpoints, save
from specdec.training.scored import ScoredBatches


class Mean(NamedTuple):
    """A mean over the target tokens of some batches, as its two parts."""

    total: jax.Array
    count: jax.Array


# (params, frozen params, batch, dropout key) -> means over the batch's target tokens, by name.
# There is no key in validation.
Figures = Callable[[Any, Any, Any, jax.Array | None], dict[str, Mean]]


@checked()
class LoopOptions:
    """Length and rhythm of a run, in optimizer steps.

    ``seed`` fixes the initial parameters and every step's dropout. A value out of range raises
    ValueError.
    """

    total_steps: Count
    log_every: Count = 20
    eval_every: Count = 500
    checkpoint_every: Count = 200
    seed: Annotated[int, Whole(0, 2**63 - 1)] = 0


def run_loop(
    figures: Figures,
    params: Any,
    optimizer: optax.GradientTransformation,
    training: Batches | ScoredBatches,
    validation: Batches,
    directory: str | os.PathLike,
    options: LoopOptions,
    *,
    loss: Callable[[dict[str, jax.Array]], jax.Array] = lambda means: means["loss"],
    frozen: Any = None,
    renew: Callable[[Any, Any, int], Any] = lambda params, batch, step: batch,
    measure: Callable[[Any], dict[str, float]] = lambda params: {},
) -> Any:
    """Trains until ``total_steps``, from the latest checkpoint in ``directory`` if there is one.

    Batches and dropout are functions of (seed, step), so that a run stopped at any moment and
    started again ends with the same bits as one never stopped. On SIGTERM the loop finishes its
    step, saves, and raises SystemExit(143).

    Args:
      figures: what is logged of a batch, and of all of ``validation`` every ``eval_every`` steps
        and at the end.
      params: initial parameters; their buffers are donated.
      loss: the scalar to minimize, made of the figures' values.
      frozen: parameters that the figures read and nobody trains.
      renew: (params, batch, step) -> the batch to train on instead.
      measure: params -> more named numbers of a validation.

    Returns:
      The final parameters.

    Raises:
      FloatingPointError: loss or gradient is not finite; the latest checkpoint is still good.
    """

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, optimizer_state, frozen, batch, step):
        key = jax.random.fold_in(jax.random.key(options.seed), step)

        def valued(params):
            found = figures(params, frozen, batch, key)
            means = {name: each.total / jnp.maximum(each.count, 1) for name, each in found.items()}
            value = loss(means)
            return value, means | {"loss": value}

        gradient, metrics = jax.grad(valued, has_aux=True)(params)
        metrics |= {"gradient_norm": optax.global_norm(gradient)}
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, metrics

    validate = validation_means(figures, frozen, validation)
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(checkpoints(directory))
        optimizer_state = optimizer.init(params)
        total, step, pending = options.total_steps, manager.latest_step() or 0, []
        if step:
            like = {"params": params, "optimizer": optimizer_state}
            items = {name: ocp.args.StandardRestore(tree) for name, tree in like.items()}
            saved = manager.restore(step, args=ocp.args.Composite(**items))
            params, optimizer_state = saved["params"], saved["optimizer"]
            say(f"Resuming at step {step} of {total}.")
        stop = stack.enter_context(stop_request(signal.SIGTERM))
        progress = stack.enter_context(Progress(total, "steps", done=step))
        batches = training.from_step(step)
        while step < total:
            batch = renew(params, next(batches), step)
            params, optimizer_state, metrics = train_step(
                params, optimizer_state, frozen, batch, step
            )
            step += 1
            pending.append(metrics)
            tokens = int(np.count_nonzero(batch.targets != validation.pad_id))
            progress.add(kind=(batch.inputs.shape, batch.targets.shape), tokens=tokens)
            last, stopping = step == total, stop.by is not None  # Once: it may come at any line.
            saving = stopping or last or step % options.checkpoint_every == 0
            if saving or step % options.log_every == 0:
                say(f"step {step}/{total}  {_format(_means(pending, step))}")
                pending.clear()
            if saving:
                save(manager, step, params=params, optimizer=optimizer_state)
            if stopping and not last:
                say(f"Stopped by SIGTERM at step {step}; run again to continue.")
                raise SystemExit(stop.exit_code)
            if last or step % options.eval_every == 0:
                say(f"step {step} validation: {_format(validate(params) | measure(params))}")
                progress.skip()
    return params


def validation_means(
    figures: Figures, frozen: Any, batches: Batches
) -> Callable[[Any], dict[str, float]]:
    """params -> the means of ``figures`` over one epoch of batches."""

    @jax.jit
    def found(params, frozen, batch):
        return figures(params, frozen, batch, None)

    def means(params: Any) -> dict[str, float]:
        parts = jax.device_get([found(params, frozen, batch) for batch in batches.epoch(0)])
        totals = jax.tree.map(lambda *values: float(sum(values)), *parts)
        return {name: total / count for name, (total, count) in totals.items()}

    return means


def _means(pending: list[dict[str, jax.Array]], step: int) -> dict[str, float]:
    """Mean metrics of the steps up to ``step``; reading them waits for the device."""
    metrics = jax.device_get(pending)
    for number, values in enumerate(metrics, start=step - len(metrics) + 1):
        if not np.isfinite(values["loss"]) or not np.isfinite(values["gradient_norm"]):
            raise FloatingPointError(
                f"Step {number}: loss {values['loss']}, gradient norm "
                f"{values['gradient_norm']}; stopped without saving."
            )
    return {name: float(np.mean([values[name] for values in metrics])) for name in metrics[0]}


def _format(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def per_token(targets: Any, pad_id: int, **values: jax.Array) -> dict[str, Mean]:
    """Means of each of ``values`` [B, T] where ``targets`` are no padding."""
    counted = targets != pad_id
    return {
        name: Mean(jnp.sum(jnp.where(counted, each, 0.0)), jnp.sum(counted))
        for name, each in values.items()
    }
