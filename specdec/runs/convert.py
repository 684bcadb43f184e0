"""Checkpoints from one library's format to another's, verified before they appear."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from specdec import checkpoints
from specdec.checkpoints import CheckpointError
from specdec.checkpoints.architectures import Config, is_t5, network
from specdec.checkpoints.parameters import written_whole
from specdec.models.transformer.config import Relative
from specdec.text.files import copy_vocabulary, vocabulary_in
from specdec.training.batching import TokenBatch
from specdec.training.checkpointing import is_run, load_params, open_run, save_params
from specdec.training.teacher_forcing import teacher_forced

FORMATS = ("huggingface", "t5x", "orbax")

# Arrays and program are equal; what is left is the order of sums in another thread pool.
TOLERANCE = 1e-5
_TARGET_LENGTH = 16
_NOT_ARITHMETIC = {"dtype", "dropout_rate"}


def convert(
    source: str, output_dir: str, form: str, dtype: str = "float32", step: int | None = None
) -> float:
    """Writes a checkpoint in another format, which takes its name once it computes the same.

    Args:
      source: a training run, or a checkpoint of T5X or Hugging Face.
      form: "huggingface"; "t5x", a ``checkpoint_<step>`` in it; or "orbax", a training run's
        directory without what would resume it.
      dtype: of the stored weights: "float32", "bfloat16" or "float16".
      step: which of the source's steps, which the result keeps; the latest if None.

    Returns:
      the largest difference between logits of the source in ``dtype`` and the result's.

    Raises:
      ValueError: an unknown format.
      FileNotFoundError: a training run has no such step.
      CheckpointError: the source cannot be read or does not fit, or the result is not the same
        network; nothing is left behind then.
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}.")
    before, step, vocabulary = _open(source, dtype, step)
    config, params = before
    if form == "t5x" and not is_t5(config):
        raise CheckpointError(
            f"{source} is no T5, and t5x is for T5s: choose huggingface or orbax."
        )
    with written_whole(Path(output_dir).absolute()) as partial:
        if form == "huggingface":
            checkpoints.save_huggingface(partial, config, params, vocabulary, dtype)
            after = checkpoints.open_huggingface(partial, dtype)
        elif form == "t5x":
            checkpoints.save_t5x(partial, config, params, step, dtype)
            after = checkpoints.open_t5x(partial, dtype)
        else:
            save_params(partial, config, jax.tree.map(np.asarray, params), step)
            after = load_params(partial)
        if form != "huggingface" and vocabulary is not None:
            copy_vocabulary(vocabulary, partial)
        old, new = (flatten_dict(dataclasses.asdict(each), sep=".") for each in (config, after[0]))
        changed = [
            f"{name} from {value!r} to {new.get(name)!r}"
            for name, value in old.items()
            if name not in _NOT_ARITHMETIC and value != new.get(name)
        ]
        difference = float(jnp.abs(_logits(before, config) - _logits(after, config)).max())
        if changed or not difference <= TOLERANCE:
            what = f" ({form} changes {'; '.join(changed)})" if changed else ""
            raise CheckpointError(
                f"{source} as {form} is not the same network: logits differ by up to "
                f"{difference:g}{what}; nothing was written."
            )
    return difference


def _open(source: str, dtype: str, step: int | None) -> tuple[tuple[Config, Any], int, Path | None]:
    """A network in ``dtype``, its step, and its vocabulary."""
    if is_run(source):
        config, params, step = open_run(source, dtype, step)
        # The dtype of activations is the reader's choice, not the training run's.
        found = dataclasses.replace(config, dtype="float32"), params
        return found, step, vocabulary_in(Path(source))
    if checkpoints.is_t5x(source):
        location, step = checkpoints.find_checkpoint(source, step)
        found = checkpoints.open_t5x(location, dtype)
    elif step is not None:
        raise CheckpointError(f"{source} has no steps to choose from; leave out step.")
    else:
        found = checkpoints.open_huggingface(source, dtype)
    return found, step or 0, checkpoints.find_vocabulary(source)


def _logits(given: tuple[Config, Any], drawn_for: Config) -> jax.Array:
    """Logits on random tokens, of which half a row is padding.

    A T5's are farther apart than any bucket of its position biases.
    """
    config, params = given[0], jax.tree.map(jnp.asarray, given[1])
    generator = np.random.default_rng(0)
    length = 2 * _TARGET_LENGTH
    if isinstance(positions := drawn_for.decoder.positions, Relative):
        length = positions.distance + 32
    inputs = generator.integers(0, drawn_for.vocab_size, (2, length))
    inputs[1, length // 2 :] = drawn_for.pad_id
    targets = generator.integers(0, drawn_for.vocab_size, (2, _TARGET_LENGTH))
    encoding, width = None, config.encoding_width
    if width is not None:
        encoding = jnp.asarray(generator.normal(size=(*inputs.shape, width)))
    return teacher_forced(network(config), params, TokenBatch(inputs, targets), None, encoding)
