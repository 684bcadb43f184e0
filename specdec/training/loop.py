"""The training loop that all recipes share."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specdec.core.fields import Count, Whole, checked
from specdec.core.progress import Progress, say
from specdec.core.signals import stop_request
from specdec.training.batching import TokenBatch
from specdec.training.checkpointing import checkpoints, restore, save
from specdec.types import AnyArray

# (params, frozen params, batch, dropout key) -> (loss, metrics). The loss is a mean over the
# batch's target tokens; metrics are scalars.
LossFunction = Callable[[Any, Any, TokenBatch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


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
    loss_function: LossFunction,
    params: Any,
    optimizer: optax.GradientTransformation,
    batches_from: Callable[[int, Callable[[], Any]], Iterator[Any]],
    evaluate: Callable[[Any], dict[str, float]],
    directory: str | os.PathLike,
    options: LoopOptions,
    *,
    frozen: Any = None,
    pad_id: int,
) -> Any:
    """Trains until ``total_steps``, from the latest checkpoint in ``directory`` if there is one.

    Batches and dropout are functions of (seed, step), so that a run stopped at any moment and
    started again ends with the same bits as one never stopped. On SIGTERM the loop finishes its
    step, saves, and raises SystemExit(143).

    Args:
      loss_function: differentiated with respect to its first argument, jitted with the update.
      params: initial parameters; their buffers are donated.
      batches_from: (step, current) -> batches from that step on, each a TokenBatch or something
        with its fields. ``current()`` are the parameters as they are when it is called.
      evaluate: params -> named numbers, called every ``eval_every`` steps and at the end.
      frozen: parameters that the loss reads and nobody trains.
      pad_id: the token that fills the batches.

    Returns:
      The final parameters.

    Raises:
      FloatingPointError: loss or gradient is not finite; the latest checkpoint is still good.
    """

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, optimizer_state, frozen, batch, step):
        key = jax.random.fold_in(jax.random.key(options.seed), step)
        (loss, metrics), gradient = jax.value_and_grad(loss_function, has_aux=True)(
            params, frozen, batch, key
        )
        metrics = {"loss": loss, "gradient_norm": optax.global_norm(gradient), **metrics}
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, metrics

    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(checkpoints(directory))
        optimizer_state = optimizer.init(params)
        total, step, pending = options.total_steps, manager.latest_step() or 0, []
        if step:
            saved = restore(manager, step, params=params, optimizer=optimizer_state)
            params, optimizer_state = saved["params"], saved["optimizer"]
            say(f"Resuming at step {step} of {total}.")
        stop = stack.enter_context(stop_request(signal.SIGTERM))
        progress = stack.enter_context(Progress(total, "steps", done=step))
        batches = batches_from(step, lambda: params)
        while step < total:
            batch = next(batches)
            params, optimizer_state, metrics = train_step(
                params, optimizer_state, frozen, batch, step
            )
            step += 1
            pending.append(metrics)
            shapes = batch.inputs.shape, batch.targets.shape
            progress.add(kind=shapes, tokens=int(np.count_nonzero(batch.targets != pad_id)))
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
                say(f"step {step} validation: {_format(evaluate(params))}")
                progress.skip()
    return params


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


def masked_mean(values: jax.Array, targets: AnyArray, pad_id: int) -> jax.Array:
    """Mean of ``values`` [B, T] where ``targets`` are no padding; 0 if nowhere."""
    sums = masked_sums(targets, pad_id, values=values)
    return sums["values"] / jnp.maximum(jnp.sum(targets != pad_id), 1)


def masked_sums(targets: AnyArray, pad_id: int, **values: jax.Array) -> dict[str, jax.Array]:
    """Sums of each of ``values`` [B, T] where ``targets`` are no padding."""
    return {name: jnp.sum(jnp.where(targets != pad_id, v, 0.0)) for name, v in values.items()}
