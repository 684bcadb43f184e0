"""Training of heads and layers that draft from a frozen target's hidden states.

At each position t of a text the target has a hidden state, from which token t is drawn. Head i
guesses token t + i from it, and learns the target's own distribution there. Before the first token
zeros stand for a state, as in decoding. An EAGLE-style layer
runs several steps ahead from each position, as in decoding: from its second step on it is given
its own states, and what it attends to are the target's states up to that position and its own ones
behind. A look-ahead embedding stands behind each position in turn.

Sources: Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models", section 6
(frozen base model); Cai et al. 2024, "Medusa", section 2.2 (Medusa-1); Zhang et al. 2024, "HASS",
section 3.2, and Li et al. 2025, "EAGLE-3", section 3.2 (steps ahead); Monea et al. 2023, "PaSS",
section 3. The losses are those of :mod:`specdec.training.losses`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec.checkpoints import architectures
from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary
from specdec.checkpoints.heads import Config, init_params, load_heads, save_heads
from specdec.checkpoints.loading import resolve
from specdec.core import platforms
from specdec.core.fields import Count, PositiveShare, checked
from specdec.core.topology import Forest
from specdec.models.eagle.config import EagleConfig
from specdec.models.eagle.model import EagleModel, EagleParams
from specdec.models.heads.network import HeadsNetwork
from specdec.models.look_ahead.model import LookAheadConfig, LookAheadParams
from specdec.models.transformer.model import TransformerModel
from specdec.training import teacher_forcing
from specdec.training.batching import BatchingOptions, TokenBatch
from specdec.training.checkpointing import load_params, load_vocabulary
from specdec.training.loop import LoopOptions, per_token, run_loop
from specdec.training.losses import LOSSES, LossName, comparison
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.speech_rows import SpeechBatch, SpeechRows
from specdec.training.train import Files, prepare
from specdec.types import Encoded

# log p, log q and the tokens that are guessed; [B, S, V], [B, S, V] and [B, S].
Compared = tuple[Array, Array, Array]


@checked()
class HeadsOptions:
    """Options for heads that learn from the target.

    Attributes:
      target: its training run, or a checkpoint: a directory, a hub id or "quickstart".
      loss: a name in :data:`specdec.training.losses.LOSSES`.
      decay: the loss of guess i has the weight decay**(i - 1) (Medusa: 0.8).
      steps_ahead: of an EAGLE-style layer, how many guesses in a row it learns; heads learn one
        each.
      generated_file: as in :class:`specdec.training.distill.DistillationOptions`.
      initial: heads of the same shape to start from; None for random parameters.
      draft_vocabulary: a directory with ``draft_vocabulary.json``, or "quickstart": guesses are
        among its tokens, and the heads have the file beside them. None for all tokens. p is not
        normalised over these tokens, so alpha is as it is in decoding; "agreement" and losses
        leave the other tokens out.
    """

    target: str
    loss: LossName = "forward_kl"
    decay: PositiveShare = 0.8
    steps_ahead: Count = 3
    generated_file: str | None = None
    initial: str | None = None
    draft_vocabulary: str | None = None


def train_heads(
    directory: str | os.PathLike,
    *,
    heads: Config,
    options: HeadsOptions,
    files: Files | SpeechRows,
    batching: BatchingOptions,
    optimizer: OptimizerOptions,
    loop: LoopOptions,
) -> dict:
    """Trains heads or a layer, resuming what ``directory`` holds; ends with ``directory/heads``.

    Validation reports the loss of each guess in a row, its ``alpha``, the mean of sum_x min(p, q)
    at temperature 1, and its ``agreement`` with the target's likeliest token, over the data's
    validation tokens. Returns the parameters.

    Raises:
      ValueError: the heads' width is not the target's, there are no heads or no tokens where the
        options name some, or as :func:`specdec.training.train.train`.
    """
    config, target_params = load_params(options.target)
    # States and logits as they are in decoding; plain products, for blocks are whole texts.
    target = architectures.decode_model(dataclasses.replace(config, dtype="float32"), "in_out")
    if heads.width != config.d_model:
        raise ValueError(
            f"The heads' width {heads.width} is not that of the target's hidden states, "
            f"{config.d_model}."
        )
    if isinstance(heads, EagleConfig) and heads.reads_encoding == target.reads_prefix:
        has = "no encoder" if target.reads_prefix else "an encoder"
        raise ValueError(f"reads_encoding is {heads.reads_encoding}, but the target has {has}.")
    given = config.encoder_width
    if isinstance(heads, EagleConfig) and given not in (None, heads.encoder_width):
        raise ValueError(
            f"The encoding_width {heads.encoder_width} is not that of what the target's encoder "
            f"makes of a text, {given}."
        )
    first, tokens = init_params(heads, jax.random.key(loop.seed)), None
    if options.initial is not None:
        shape, first = load_heads(resolve(options.initial, "draft"), target_params)
        if shape != heads:
            raise ValueError(f"{options.initial} holds {shape}, and {heads} are to be trained.")
    if options.draft_vocabulary is not None:
        source = options.draft_vocabulary
        tokens = load_draft_vocabulary(resolve(source, "draft"), config.vocab_size)
        if tokens is None:
            raise ValueError(
                f"{source} holds no draft vocabulary: make one by "
                "configs/training/quickstart_draft_vocabulary.gin."
            )
    update = make_optimizer(optimizer, loop.total_steps)
    vocabulary = load_vocabulary(options.target)
    training, validation = prepare(
        directory, config, vocabulary, files, batching, loop,
        generated_file=options.generated_file, trains_model=False,
        optimizer=optimizer, heads=heads, options=options,
    )  # fmt: skip
    divergence = LOSSES[options.loss]
    full = target.pack(target_params)
    # The target's parts that guesses use; most are the same arrays.
    guessing = full if tokens is None else target.restricted(full, target_params, tokens, None)

    def compared(
        params: Any, frozen: tuple[Any, Any], batch: TokenBatch | SpeechBatch
    ) -> Iterator[Compared]:
        """Compare guess 1, 2, ... in a row from each position with the target."""
        full, guessing = frozen
        targets = jnp.asarray(batch.targets)
        if isinstance(batch, SpeechBatch):
            fed, encoded, hidden = batch.as_read(target, full)
            log_p = target.logits(guessing, hidden) - batch.log_sums[..., None]
        else:
            inputs = jnp.asarray(batch.inputs)
            fed, encoded, hidden = teacher_forcing.states_along(target, full, inputs, targets)
            log_p = jax.nn.log_softmax(target.logits(full, hidden))
            if tokens is not None:
                log_p = log_p[..., np.asarray(tokens)]
        length = fed.shape[1]
        if isinstance(heads, EagleConfig):
            layer = EagleModel(target, heads)
            own = EagleParams(layer.pack(params), guessing)
            count = min(options.steps_ahead, length)
            guesses = enumerate(steps_ahead(layer, own, encoded, fed, hidden, count))
        elif isinstance(heads, LookAheadConfig):
            own = LookAheadParams(params["embeddings"], guessing)
            made = look_ahead(target, own, encoded, fed)
            guesses = ((i, made[:, :-i, i - 1]) for i in range(1, min(heads.count, length - 1) + 1))
        else:
            made = jnp.asarray(HeadsNetwork(heads).apply({"params": params}, _after(hidden)))
            guesses = ((i, made[:, : length - i, i]) for i in range(min(heads.count, length)))
        for i, states in guesses:
            log_q = jax.nn.log_softmax(target.logits(guessing, states))
            yield log_p[:, i:], log_q, targets[:, i:]

    def figures(params, frozen, batch, key):
        del key
        found = {}
        for number, (log_p, log_q, targets) in enumerate(compared(params, frozen, batch), 1):
            values = comparison(log_p, log_q) | {"loss": divergence(log_p, log_q)}
            named = {f"{name}_{number}": value for name, value in values.items()}
            found |= per_token(targets, training.pad_id, **named)
        return found

    def loss(means):
        losses = [value for name, value in means.items() if name.startswith("loss_")]
        weights = options.decay ** jnp.arange(len(losses))
        return jnp.dot(weights / jnp.sum(weights), jnp.stack(losses))

    with platforms.compiling_for(platforms.current().without_kernels):
        params = run_loop(
            figures, first, update, training, validation, directory, loop, loss=loss,
            frozen=(full, guessing),
        )  # fmt: skip
    made = Path(directory) / "heads"
    if not made.is_dir():  # Else this run had ended before.
        save_heads(made, heads, params, target_params, tokens)
    return params


def steps_ahead(
    layer: EagleModel, params: EagleParams, encoded: Encoded, fed: Int[Array, "b t"],
    hidden: Float[Array, "b t d"], count: int,
) -> Iterator[Float[Array, "b s d"]]:  # fmt: skip
    """The layer's states at step 0, 1, ... ahead of each position; S = T - step of them.

    Args:
      encoded, fed, hidden: of :func:`specdec.training.teacher_forcing.states_along`.
      count: steps.
    """
    batch, length = fed.shape
    own, cache = layer.start(params, batch, count * length, encoded)
    # Entry e of the cache: token e % T, as it was at step e // T.
    steps, entries = np.divmod(np.arange(count * length), length)
    indices = np.arange(length)[:, None]

    states = _after(hidden)
    for step in range(count):
        true = (steps == 0) & (entries <= indices - step)
        seen = true | ((steps > 0) & (steps <= step) & (entries == indices - step + steps))
        every = (np.stack([a] * batch) for a in (seen, indices[:, 0], entries))
        order = Forest(*map(jnp.asarray, every))
        found, cache = layer.extend(params, own, cache, fed, states, order, after=step * length)
        yield found[:, step:]
        states = _after(found)


def _after(states: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """State from which each fed token was drawn; zero for the first, which has none."""
    return jnp.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def look_ahead(
    target: TransformerModel, params: LookAheadParams, encoded: Encoded, fed: Int[Array, "b t"]
) -> Float[Array, "b t l d"]:
    """The states of embeddings behind each position of a text, all in one call.

    Args:
      encoded, fed: of :func:`specdec.training.teacher_forcing.states_along`.
    """
    batch, length = fed.shape
    count = len(params.embeddings)
    x = target.embed(params.target, fed)
    rows = jnp.repeat(params.embeddings, length, axis=0).astype(x.dtype)
    x = jnp.concatenate([x, jnp.broadcast_to(rows, (batch, *rows.shape))], axis=1)
    # Entry e of the cache: token e % T of the text, or the embedding e // T behind it.
    steps, entries = np.divmod(np.arange((1 + count) * length), length)
    text = (steps == 0) & (entries <= entries[:, None])
    own = (steps > 0) & (steps <= steps[:, None]) & (entries == entries[:, None])
    indices = np.stack([entries + steps] * batch)
    order = Forest(jnp.asarray(np.stack([text | own] * batch)), *[jnp.asarray(indices)] * 2)
    cache = target.empty_cache(batch, x.shape[1])
    hidden, _ = target.extend_embedded(params.target, encoded, cache, x, order)
    return jnp.stack(jnp.split(hidden[:, length:], count, axis=1), axis=2)
