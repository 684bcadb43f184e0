"""Heads on a frozen target's hidden states, trained to guess what the target generates.

At each position t of a text the target has a hidden state, from which token t is drawn. Head i
guesses token t + i from it, and learns the target's own distribution there.

Sources: Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models", section 6
(frozen base model); Cai et al. 2024, "Medusa", section 2.2 (Medusa-1); the losses are those of
:mod:`specdec.training.losses`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from specdec.arguments import real
from specdec.checkpoints import architectures
from specdec.checkpoints.heads import save_heads
from specdec.data.batching import BatchingOptions, TokenBatch
from specdec.data.text import read_pairs
from specdec.models.heads.network import Heads, HeadsConfig, init_params
from specdec.training.checkpointing import load_params, load_vocabulary
from specdec.training.loop import LoopOptions, masked_mean, masked_sums, run_loop
from specdec.training.losses import LOSSES, comparison
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.train import Files, per_token, prepare


@dataclasses.dataclass(frozen=True)
class HeadsOptions:
    """What heads learn from the target.

    Attributes:
      target: its training run, or a checkpoint: a directory, a hub id or "quickstart".
      loss: a name in :data:`specdec.training.losses.LOSSES`.
      decay: the loss of head i has the weight decay**(i - 1) (Medusa: 0.8).
      generated_file: as in :class:`specdec.training.distill.DistillationOptions`.
    """

    target: str
    loss: str = "forward_kl"
    decay: float = 0.8
    generated_file: str | None = None

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}.")
        real("decay", self.decay, "in (0, 1]", math.ulp(0.0), 1)


def train_heads(
    directory: str | os.PathLike,
    *,
    heads: HeadsConfig,
    options: HeadsOptions,
    files: Files,
    batching: BatchingOptions,
    optimizer: OptimizerOptions,
    loop: LoopOptions,
) -> dict:
    """Trains heads, resuming what ``directory`` holds; at the end writes ``directory/heads``.

    Validation reports the loss of all heads, and of each its ``alpha``, the mean of
    sum_x min(p, q) at temperature 1, and its ``agreement`` with the target's likeliest token, over
    the data's validation tokens. Returns the parameters.

    Raises:
      ValueError: the heads' width is not the target's, or as
        :func:`specdec.training.train.train`.
    """
    config, target_params = load_params(options.target)
    # States and logits as they are in decoding; plain products, for blocks are whole texts.
    target = architectures.decode_model(dataclasses.replace(config, dtype="float32"), "in_out")
    if heads.width != config.d_model:
        raise ValueError(
            f"The heads' width {heads.width} is not that of the target's hidden states, "
            f"{config.d_model}."
        )
    update = make_optimizer(optimizer, loop.total_steps)
    generated = read_pairs(options.generated_file) if options.generated_file else []
    vocabulary = load_vocabulary(options.target)
    training, validation = prepare(
        directory, config, vocabulary, files, batching, loop, generated,
        trains_model=False, optimizer=optimizer, heads=heads, options=options,
    )  # fmt: skip
    frozen, network = target.pack(target_params), Heads(heads)
    divergence = LOSSES[options.loss]
    weights = options.decay ** jnp.arange(heads.count)
    weights /= jnp.sum(weights)

    def compared(params: Any, frozen: Any, batch: TokenBatch):
        """For each head log p, log q and the targets that it guesses."""
        inputs, targets = jnp.asarray(batch.inputs), jnp.asarray(batch.targets)
        hidden = architectures.states_along(target, frozen, inputs, targets)
        log_p = jax.nn.log_softmax(target.logits(frozen, hidden))
        states = jnp.asarray(network.apply({"params": params}, hidden))
        for i in range(min(heads.count, targets.shape[1] - 1)):
            log_q = jax.nn.log_softmax(target.logits(frozen, states[:, : -i - 1, i]))
            yield log_p[:, i + 1 :], log_q, targets[:, i + 1 :]

    def loss_function(params, frozen, batch, key):
        del key
        losses, metrics = [], {}
        for number, (log_p, log_q, targets) in enumerate(compared(params, frozen, batch), 1):
            losses.append(masked_mean(divergence(log_p, log_q), targets))
            alpha = comparison(log_p, log_q)["alpha"]
            metrics[f"alpha_{number}"] = masked_mean(alpha, targets)
        return jnp.dot(weights[: len(losses)], jnp.stack(losses)), metrics

    def validation_sums(params, frozen, batch):
        sums = {}
        for number, (log_p, log_q, targets) in enumerate(compared(params, frozen, batch), 1):
            found = comparison(log_p, log_q) | {"loss": divergence(log_p, log_q)}
            sums |= masked_sums(targets, **{f"{name}_{number}": v for name, v in found.items()})
        return sums

    params = run_loop(
        loss_function, init_params(heads, jax.random.key(loop.seed)), update,
        lambda step, _: training.from_step(step), per_token(validation_sums, frozen, validation),
        directory, loop, frozen=frozen,
    )  # fmt: skip
    save_heads(Path(directory) / "heads", heads, params, target_params)
    return params
