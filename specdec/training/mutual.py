"""Mutual learning: a trained target and its draft learn to agree with each other.

Where several tokens are about equally good, the target can move toward the draft too. With p0 the
target's earlier distribution, p and q those of target and draft now, position by position, both
minimize

    KL(p0 || p) + w TV(p, q)

where 1 - TV(p, q) is the probability of acceptance (Leviathan et al. 2023, corollary 3.6). Decoding
stays exact: it follows p, the target that comes out of this, whose quality must be measured again.

Source: Zhang et al. 2018 ("Deep Mutual Learning"), where two models learn from each other; holding
one near p0 and total variation are ours.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from specdec.checkpoints import architectures
from specdec.core.fields import Above0, Count, checked
from specdec.text.files import copy_vocabulary
from specdec.training.batching import BatchingOptions
from specdec.training.checkpointing import load_params, load_vocabulary, save_params
from specdec.training.distill import check_draft
from specdec.training.loop import LoopOptions, per_token, run_loop
from specdec.training.losses import comparison, forward_kl
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.scored import ScoredBatch, ScoredBatches, of_kept_tokens
from specdec.training.teacher_forcing import decoder_inputs, teacher_forced
from specdec.training.train import TextFiles, likeliest, prepare


@checked()
class MutualOptions:
    """Options for models that learn to agree: which, and how much.

    Attributes:
      target, draft: training runs, or checkpoints: directories, hub ids or names such as
        "quickstart/draft".
      agreement_weight: w, > 0; the draft learns from this part of the loss only.
      scored_epochs: the target scores so many epochs of batches before the first step, for p0;
        they are gone through again and again.
    """

    target: str
    draft: str
    agreement_weight: Above0 = 2.0
    scored_epochs: Count = 1


def learn_together(
    directory: str | os.PathLike,
    *,
    mutual: MutualOptions,
    files: TextFiles,
    batching: BatchingOptions,
    target_optimizer: OptimizerOptions,
    draft_optimizer: OptimizerOptions,
    loop: LoopOptions,
) -> dict:
    """Trains both, resuming what ``directory`` holds; at the end writes ``target`` and ``draft``.

    Of the target its decoder learns; its embeddings and encoder stay, so that what it makes of the
    inputs is computed once. ``directory/target`` and ``directory/draft`` are run directories of
    their own; their parameters, by these names, are returned. Validation reports ``drift``,
    KL(p0 || p) in nats; ``accuracy``, the share of the data's tokens that are the target's most
    probable ones, and ``accuracy_before``; ``alpha`` and ``agreement`` as in
    :func:`specdec.training.distill.distill`, which raises the same.
    """
    (target_model, before), (draft_model, draft_params) = map(
        load_params, (mutual.target, mutual.draft)
    )
    check_draft(draft_model, target_model)
    if not all(map(architectures.is_t5, (target_model, draft_model))):
        raise ValueError(
            "Only a T5 learns together with its draft: its encoder stays as it is. Distill the "
            "draft of another one."
        )
    vocabulary, directory = load_vocabulary(mutual.target), Path(directory)
    optimizer = optax.multi_transform(
        {
            "target": make_optimizer(target_optimizer, loop.total_steps),
            "draft": make_optimizer(draft_optimizer, loop.total_steps),
        },
        {"target": "target", "draft": "draft"},
    )
    training, validation = prepare(
        directory, target_model, vocabulary, files, batching, loop, trains_model=False,
        mutual=mutual, target_optimizer=target_optimizer, draft_optimizer=draft_optimizer,
    )  # fmt: skip
    target, draft = map(architectures.network, (target_model, draft_model))

    def log_target(whole, batch, encoding) -> jax.Array:
        """log p, [B, T, V], from the encoding [B, S, D] of the inputs."""
        tokens = decoder_inputs(target_model, jnp.asarray(batch.targets))
        logits = target.apply({"params": whole}, encoding, batch.inputs, tokens, method="decode")
        return jax.nn.log_softmax(jnp.asarray(logits))

    def score(frozen, batch) -> tuple[jax.Array, jax.Array]:
        """log p0 and the encoding."""
        if isinstance(batch, ScoredBatch):
            return batch.log_probs, jnp.asarray(batch.encoding, jnp.float32)
        encoding = jnp.asarray(target.apply({"params": frozen}, batch.inputs, method="encode"))
        return log_target(frozen, batch, encoding), encoding

    def figures(params, frozen, batch, key):
        log_before, encoding = score(frozen, batch)
        log_p = log_target(frozen | {"decoder": params["target"]}, batch, encoding)
        start = encoding if draft_model.encoding_width is not None else None
        log_q = jax.nn.log_softmax(teacher_forced(draft, params["draft"], batch, key, start))
        values = comparison(log_p, log_q)
        values["drift"] = forward_kl(log_before, of_kept_tokens(batch, log_p))
        values["accuracy"] = likeliest(log_p, batch.targets)
        if not isinstance(batch, ScoredBatch):
            values["accuracy_before"] = likeliest(log_before, batch.targets)
        return per_token(batch.targets, target_model.pad_id, **values)

    batches = ScoredBatches(directory, training, mutual.scored_epochs, score, before)
    first = {"target": jax.tree.map(jnp.array, before["decoder"]), "draft": draft_params}
    params = run_loop(
        figures, first, optimizer, batches, validation, directory, loop, frozen=before,
        loss=lambda means: means["drift"] + mutual.agreement_weight * (1 - means["alpha"]),
    )  # fmt: skip
    results = {"target": before | {"decoder": params["target"]}, "draft": params["draft"]}
    for name, model in (("target", target_model), ("draft", draft_model)):
        save_params(directory / name, model, results[name], loop.total_steps)
        copy_vocabulary(vocabulary.path, directory / name)
    return results
