"""Distillation of a draft from a frozen target.

A loss (:mod:`specdec.training.losses`) compares the two distributions at every position of a text.
The texts are the data's, the target's own outputs (:mod:`specdec.training.generate`), the draft's
(:mod:`specdec.training.on_policy`), or some of each.

Source: Hinton et al. 2015 for the idea, Zhou et al. 2023 (DistillSpec) for its use in speculative
decoding.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from specdec.checkpoints import architectures
from specdec.core.fields import ABOVE_0, BELOW_1, Real, Share, Whole, checked
from specdec.training.acceptance import acceptance
from specdec.training.batching import BatchingOptions
from specdec.training.checkpointing import load_params, load_vocabulary
from specdec.training.loop import LoopOptions, per_token, run_loop
from specdec.training.losses import (
    LOSSES,
    OF_ALL_TOKENS,
    Divergence,
    LossName,
    comparison,
    jensen_shannon,
)
from specdec.training.on_policy import OnPolicy, generator
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.scored import ScoredBatch, ScoredBatches, of_kept_tokens
from specdec.training.teacher_forcing import teacher_forced
from specdec.training.train import Files, first_params, prepare


@checked()
class DistillationOptions:
    """Options for a draft that learns from the target.

    Attributes:
      target: its training run, or a checkpoint: a directory, a hub id or "quickstart".
      loss: a name in :data:`specdec.training.losses.LOSSES`.
      jensen_shannon_weight: w of the loss of that name, between 0 and 1.
      cross_entropy_weight: w in (1 - w) * loss + w * cross-entropy with the data's tokens.
      generated_file: ``input<TAB>the target's own output`` lines to train on beside the data's
        pairs (:mod:`specdec.training.generate` writes it); None for the data's alone. To train on
        nothing else, name it as the data's training file.
      on_policy: the share of batches whose outputs the draft generates itself; None for none.
      scored_epochs: the target scores so many epochs of batches before the first step, and the
        draft goes through them again and again; 0 for a forward pass of it at every step. Of
        each distribution the most probable 32 tokens are kept.
    """

    target: str
    loss: LossName = "forward_kl"
    jensen_shannon_weight: Annotated[float, Real("between 0 and 1", ABOVE_0, BELOW_1)] = 0.5
    cross_entropy_weight: Share = 0.0
    generated_file: str | None = None
    on_policy: OnPolicy | None = None
    scored_epochs: Annotated[int, Whole(0)] = 0

    def __post_init__(self):
        if self.scored_epochs and self.loss in OF_ALL_TOKENS:
            raise ValueError(
                f"{self.loss} needs the target's probability of every token: use another loss, or "
                "scored_epochs=0."
            )
        if self.on_policy and self.cross_entropy_weight:
            raise ValueError(
                "The draft would learn to repeat its own outputs: with on_policy, "
                "cross_entropy_weight must be 0."
            )

    @property
    def divergence(self) -> Divergence:
        """The loss with its weight."""
        if self.loss == "jensen_shannon":
            return functools.partial(jensen_shannon, weight=self.jensen_shannon_weight)
        return LOSSES[self.loss]


def check_draft(draft: architectures.Config, target: architectures.Config) -> None:
    """Raises ValueError if the one cannot draft for the other."""
    if draft.reads_prefix != target.reads_prefix:
        kinds = {False: "an encoder-decoder", True: "decoder-only"}
        raise ValueError(
            f"The draft is {kinds[draft.reads_prefix]}, the target {kinds[target.reads_prefix]}: "
            "one continues what the other encodes."
        )
    width, needed = target.encoder_width, draft.encoding_width
    if needed not in (None, width):
        raise ValueError(
            f"The draft's encoding_width {needed} is not the width of the target's encoding, "
            f"{width}."
        )
    if draft.pad_id != target.pad_id:
        raise ValueError(
            f"The draft's pad_id is {draft.pad_id}, the target's {target.pad_id}: they must be the "
            "same, for both read the same batches."
        )
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"The draft's vocab_size {draft.vocab_size} is not the target's "
            f"{target.vocab_size}: their distributions could not be compared."
        )


def distill(
    directory: str | os.PathLike,
    *,
    model: architectures.Config,
    files: Files,
    batching: BatchingOptions,
    optimizer: OptimizerOptions,
    loop: LoopOptions,
    distillation: DistillationOptions,
    initial: str | None = None,
) -> dict:
    """Distills a draft, resuming what ``directory`` holds. Returns its parameters.

    ``initial`` is as in :func:`specdec.training.train.train`, as is what is raised; the vocabulary
    is the target's. Validation reports the loss, ``alpha``, the mean of sum_x min(p, q) at
    temperature 1, and ``agreement``, the share of positions where target and draft have the same
    most probable token, over the data's validation tokens; and what decoding with the draft gives,
    see :func:`specdec.training.acceptance.acceptance`.
    """
    target_model, target_params = load_params(distillation.target)
    check_draft(model, target_model)
    update = make_optimizer(optimizer, loop.total_steps)
    first = first_params(model, loop.seed, initial)
    training, validation = prepare(
        directory, model, load_vocabulary(distillation.target), files, batching, loop,
        generated_file=distillation.generated_file,
        optimizer=optimizer, distillation=distillation, initial=initial,
    )  # fmt: skip
    draft = architectures.network(model)
    # Trained on in the draft's precision, validated as it will be decoded.
    teacher, target = (
        architectures.network(dataclasses.replace(target_model, dtype=dtype))
        for dtype in (model.dtype, "float32")
    )
    divergence, weight = distillation.divergence, distillation.cross_entropy_weight

    def score(network, frozen, batch) -> tuple[jax.Array, Any]:
        """log p, and the encoding that the draft starts from, if not from the text alone."""
        if isinstance(batch, ScoredBatch):
            return batch.log_probs, batch.encoding
        log_p = jax.nn.log_softmax(teacher_forced(network, frozen, batch))
        if model.encoding_width is None:
            return log_p, None
        return log_p, network.apply({"params": frozen}, batch.inputs, method="encode")

    def figures(params, frozen, batch, key):
        log_p, encoding = score(target if key is None else teacher, frozen, batch)
        every = jax.nn.log_softmax(teacher_forced(draft, params, batch, key, encoding))
        log_q = of_kept_tokens(batch, every)
        values = comparison(log_p, log_q) | {"loss": divergence(log_p, log_q)}
        if weight:
            given = jnp.take_along_axis(every, batch.targets[..., None], axis=-1)
            values["cross_entropy"] = -given[..., 0]
        return per_token(batch.targets, model.pad_id, **values)

    def loss(means):
        return (1 - weight) * means["loss"] + weight * means.get("cross_entropy", 0.0)

    batches, options = training, {}
    if epochs := distillation.scored_epochs:
        by_teacher = functools.partial(score, teacher)
        batches = ScoredBatches(directory, training, epochs, by_teacher, target_params)
    if distillation.on_policy:
        frozen = (target_model, target_params)
        options["renew"] = generator(model, distillation.on_policy, loop.seed, frozen)
    return run_loop(
        figures, first, update, batches, validation, directory, loop, loss=loss,
        frozen=target_params, measure=acceptance(target_model, target_params, model, validation),
        **options,
    )  # fmt: skip
