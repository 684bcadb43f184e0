"""A draft of some of its target's decoder layers, on the target's encoder, trained on speech.

The draft begins as the target without the other layers, and learns the target's distribution. Only
the layers and the last norm are trained: the encoder stays the target's, so decoding encodes a
window once for both.

Source: Gandhi et al. 2023, "Distil-Whisper", sections 3 and 4.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from specdec.checkpoints import architectures, find_vocabulary, save_huggingface
from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary, save_draft_vocabulary
from specdec.checkpoints.formats import open_checkpoint
from specdec.checkpoints.loading import resolve
from specdec.core import platforms
from specdec.core.arguments import whole
from specdec.core.fields import checked
from specdec.training.batching import BatchingOptions
from specdec.training.checkpointing import load_vocabulary
from specdec.training.loop import LoopOptions, per_token, run_loop
from specdec.training.losses import LOSSES, LossName, comparison
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.speech_rows import SpeechRows
from specdec.training.train import prepare


@checked()
class ShallowOptions:
    """Options for a draft of few layers.

    Attributes:
      target: a checkpoint with an encoder: a directory or a hub id.
      layers: numbers of the target's decoder layers that the draft begins with, from 0.
      loss: a name in :data:`specdec.training.losses.LOSSES`.
      draft_vocabulary: as in :class:`specdec.training.heads.HeadsOptions`.
    """

    target: str
    layers: tuple[int, ...]
    loss: LossName = "forward_kl"
    draft_vocabulary: str | None = None


def train_shallow(
    directory: str | os.PathLike, *, options: ShallowOptions, files: SpeechRows,
    batching: BatchingOptions, optimizer: OptimizerOptions, loop: LoopOptions,
) -> dict:  # fmt: skip
    """Trains the draft, resuming what ``directory`` holds; ends with ``directory/draft``.

    Validation reports the loss, ``alpha`` and ``agreement``, as
    :func:`specdec.training.heads.train_heads` does. Returns the trained parameters.

    Raises:
      ValueError: the target has no such layer, or as :func:`specdec.training.train.train`.
    """
    source = resolve(options.target, "target")
    config, stored = open_checkpoint(source, None)
    given = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), stored)
    config = dataclasses.replace(config, dtype="float32")
    for number in options.layers:
        whole("layers: a layer", number, 0, config.num_decoder_layers - 1)
    stack = dataclasses.replace(config.decoder, num_layers=len(options.layers))
    model = dataclasses.replace(config, decoder=stack)
    target, draft = (architectures.decode_model(each, "in_out") for each in (config, model))
    tokens = None
    if options.draft_vocabulary is not None:
        given_tokens = resolve(options.draft_vocabulary, "draft")
        tokens = load_draft_vocabulary(given_tokens, config.vocab_size)
    update = make_optimizer(optimizer, loop.total_steps)
    training, validation = prepare(
        directory, config, load_vocabulary(options.target), files, batching, loop,
        trains_model=False, optimizer=optimizer, options=options,
    )  # fmt: skip
    divergence, full = LOSSES[options.loss], target.pack(given)
    guessing = full if tokens is None else target.restricted(full, given, tokens, None)
    kept = {f"layers_{number}": i for i, number in enumerate(options.layers)}
    decoder = {name: part for name, part in given["decoder"].items() if "layers_" not in name}
    decoder |= {f"layers_{i}": given["decoder"][name] for name, i in kept.items()}
    first = jax.tree.map(jnp.copy, decoder)  # The loop donates them.
    others = {name: part for name, part in given.items() if name != "decoder"}

    def figures(params: Any, frozen: Any, batch: Any, key: Any):
        del key
        guessing, others = frozen
        every = others | {"decoder": params}
        packed = draft.pack(every)
        fed, encoded, states = batch.as_read(draft, packed)
        log_p = target.logits(guessing, states) - batch.log_sums[..., None]
        own = packed if tokens is None else draft.restricted(packed, every, tokens, None)
        hidden, _ = draft.extend(packed, encoded, draft.empty_cache(*fed.shape), fed)
        log_q = jax.nn.log_softmax(draft.logits(own, hidden))
        values = comparison(log_p, log_q) | {"loss": divergence(log_p, log_q)}
        return per_token(jnp.asarray(batch.targets), training.pad_id, **values)

    with platforms.compiling_for(platforms.current().without_kernels):
        params = run_loop(
            figures, first, update, training, validation, directory, loop,
            frozen=(guessing, others),
        )  # fmt: skip
    made = Path(directory) / "draft"
    if not made.is_dir():  # Else this run had ended before.
        # In the target's own dtype: so the encoder is still the same, and loading shares it.
        dtype = stored["token_embedder"]["embedding"].dtype.name
        every = others | {"decoder": params}
        save_huggingface(made, model, every, find_vocabulary(source), dtype)
        if tokens is not None:
            save_draft_vocabulary(made, tokens)
    return params
