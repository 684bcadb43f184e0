"""Batches of texts and outputs as a network is trained on them, and what it says of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from specdec.models.transformer.config import TransformerConfig as Config
from specdec.models.transformer.model import TransformerModel
from specdec.types import Encoded, Encoding, Prompt


def training_pair(
    config: Config, text: Sequence[int], output: Sequence[int], start_ids: Sequence[int] = ()
) -> tuple[Sequence[int], Sequence[int]]:
    """Tokens that a network reads, and tokens that it is to predict, both without EOS.

    A decoder-only model reads the text and the output as one, and predicts at each position the
    token after it; those of the text itself are pads, which no loss counts. Before a text stand
    ``start_ids``, as in decoding. Where there is nothing at all, it is the start token.
    """
    read = [*start_ids, *text]
    if not config.reads_prefix:
        return read, output
    read = read or [config.start_id]
    return [*read, *output], [*[config.pad_id] * (len(read) - 1), *output]


def prompts(
    config: Config, inputs: Int[np.ndarray, "b s"], targets: Int[np.ndarray, "b t"]
) -> list[list[int]]:
    """The texts of a batch of :func:`training_pair`, as decoding is given them; no spare rows."""
    if config.reads_prefix:
        sizes = 1 + np.argmax(targets != config.pad_id, axis=1)
    else:
        sizes = np.count_nonzero(inputs != config.pad_id, axis=1)
    used = np.any(targets != config.pad_id, axis=1)
    return [row[:size].tolist() for row, size in zip(inputs[used], sizes[used], strict=True)]


def teacher_forced(
    network: Any, params: dict, batch: Any, dropout_key: jax.Array | None = None,
    encoding: Float[Array, "b s w"] | None = None,
) -> Float[Array, "b t v"]:  # fmt: skip
    """Float32 logits of a batch's targets.

    Args:
      network: of :func:`specdec.checkpoints.architectures.network`.
      batch: ``inputs`` [B, S] and ``targets`` [B, T] of :func:`training_pair`.
      dropout_key: None for no dropout.
      encoding: the target's, for a draft that starts from it.
    """
    inputs, targets = jnp.asarray(batch.inputs), jnp.asarray(batch.targets)
    options: dict[str, Any] = {"deterministic": dropout_key is None}
    options["rngs"] = {} if dropout_key is None else {"dropout": dropout_key}
    if network.config.reads_prefix:
        # States behind the last target predict nothing.
        logits = network.apply({"params": params}, inputs[:, : targets.shape[1]], **options)
    else:
        shifted = decoder_inputs(network.config, targets)
        given = () if encoding is None else (encoding,)
        logits = network.apply({"params": params}, inputs, shifted, *given, **options)
    return jnp.asarray(logits)


def states_along(
    model: TransformerModel,
    params: Any,
    inputs: Shaped[Array, "b s ..."],
    targets: Int[Array, "b t"],
) -> tuple[Int[Array, "b t"], Encoded, Float[Array, "b t d"]]:
    """The last hidden state from which each of ``targets`` is drawn, given batches of pairs.

    Args:
      model, params: of :func:`specdec.checkpoints.architectures.decode_model`, so that states are
        those of decoding.
      inputs: tokens, or [B, S, D] what the encoder has made of them.

    Returns:
      the token that each of the targets follows, what the model made of the inputs, and states.
    """
    length, ones = targets.shape[1], jnp.ones((len(inputs),), jnp.int32)
    if model.reads_prefix:
        fed = inputs[:, :length]
        prompt = Prompt(inputs[:, :0], 0 * ones, fed[:, :1], ones)
    else:
        fed = decoder_inputs(model.config, targets)
        if inputs.ndim == 3:
            encoding = Encoding(inputs, inputs.shape[1] * ones)
            prompt = Prompt(inputs, encoding.lengths, fed[:, :1], ones, encoding)
        else:
            lengths = jnp.sum(inputs != model.pad_id, axis=1)
            prompt = Prompt(inputs, lengths, fed[:, :1], ones)
    start = model.start(params, prompt, length)
    return fed, start.encoded, model.extend(params, start.encoded, start.cache, fed)[0]


def decoder_inputs(config: Config, targets: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Inputs of the network's decoder to score ``targets``: the start token, then all but one."""
    return jnp.pad(targets, ((0, 0), (1, 0)), constant_values=config.start_id)[:, :-1]
