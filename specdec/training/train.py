"""Supervised training of a model: from parallel text, or from text alone."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import optax

from specdec.checkpoints import architectures
from specdec.data.tasks import text_file
from specdec.data.text import read_pairs
from specdec.text.base import Tokenizer
from specdec.training import teacher_forcing
from specdec.training.batching import Batches, BatchingOptions, TokenPair
from specdec.training.checkpointing import load_params, load_vocabulary, prepare_directory
from specdec.training.loop import LoopOptions, per_token, run_loop
from specdec.training.optimizer import OptimizerOptions, make_optimizer
from specdec.training.speech_rows import SpeechRows
from specdec.training.validation import Translate, bleu


class Files(Protocol):
    """Files that examples are read from."""

    def read(self, name: Literal["train", "validation"]) -> list[tuple[str, str]]:
        """(input, output) texts of one split."""
        ...


@dataclasses.dataclass(frozen=True)
class PassageFiles:
    """Files of one text a line, which a model is to generate from nothing."""

    directory: str
    train: str = "train.txt"
    validation: str = "validation.txt"

    def read(self, name: Literal["train", "validation"]) -> list[tuple[str, str]]:
        """The texts of one file, each behind an empty input."""
        rows = text_file(Path(self.directory) / getattr(self, name)).examples
        return [("", row.input) for row in rows]


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Files of ``input<TAB>target`` lines, relative to ``directory`` unless absolute."""

    directory: str
    train: str = "train.tsv"
    validation: str = "validation.tsv"

    def read(self, name: Literal["train", "validation"]) -> list[tuple[str, str]]:
        """The pairs of one file."""
        return read_pairs(Path(self.directory) / getattr(self, name))


def train(
    directory: str | os.PathLike,
    *,
    model: architectures.Config,
    files: Files,
    vocabulary_path: str,
    batching: BatchingOptions,
    optimizer: OptimizerOptions,
    loop: LoopOptions,
    initial: str | None = None,
    make_translate: Callable[[architectures.Config, Tokenizer], Translate] | None = None,
    bleu_sentences: int = 200,
) -> dict:
    """Trains a model by cross-entropy, resuming what ``directory`` holds. Returns the parameters.

    Args:
      initial: a run or checkpoint whose parameters this one starts from; None for random ones.
      make_translate: makes the decoder whose BLEU on ``bleu_sentences`` of the validation
        sentences is reported; None for no BLEU.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data, vocabulary or settings.
      FloatingPointError: the loss is no longer finite.
    """
    vocabulary = load_vocabulary(vocabulary_path)
    update = make_optimizer(optimizer, loop.total_steps)
    first = first_params(model, loop.seed, initial)
    training, validation = prepare(
        directory, model, vocabulary, files, batching, loop, optimizer=optimizer, initial=initial
    )
    network = architectures.network(model)

    def figures(params, _, batch, key):
        logits = teacher_forcing.teacher_forced(network, params, batch, key)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        accuracy = likeliest(logits, batch.targets)
        return per_token(batch.targets, model.pad_id, loss=loss, accuracy=accuracy)

    sentences = files.read("validation")
    # Spread over the file, which may be sorted by length.
    sentences = sentences[:: max(1, len(sentences) // bleu_sentences)][:bleu_sentences]
    translate = make_translate(model, vocabulary) if make_translate else None

    def measure(params):
        return {"bleu": bleu(translate, params, sentences)} if translate else {}

    return run_loop(figures, first, update, training, validation, directory, loop, measure=measure)


def first_params(model: architectures.Config, seed: int, initial: str | None) -> dict:
    """Random parameters, or those that :func:`load_params` finds in ``initial``.

    A draft that starts from its target's encoding may begin as one that does not: the projection
    that it lacks is random and small, so that it starts as the other one.

    Raises ValueError if they are of another network.
    """
    fresh = architectures.init_params(model, jax.random.key(seed))
    if initial is None:
        return fresh
    other, params = load_params(initial)
    same: dict[str, Any] = {"dtype": model.dtype, "dropout_rate": model.dropout_rate}
    others, width = other.encoding_width, model.encoding_width
    if others is None and width is not None:
        same["encoding_width"] = width
        kernel = 0.1 * fresh["encoder"]["input_projection"]["kernel"]
        encoder = params["encoder"] | {"input_projection": {"kernel": kernel}}
        params = params | {"encoder": encoder}
    if dataclasses.replace(other, **same) != model:
        raise ValueError(f"{initial} is of another network: {other}, not {model}.")
    return params


def prepare(
    directory: str | os.PathLike,
    model: architectures.Config,
    vocabulary: Tokenizer,
    files: Files | SpeechRows,
    batching: BatchingOptions,
    loop: LoopOptions,
    *,
    generated_file: str | None = None,
    trains_model: bool = True,
    **settings: Any,
) -> tuple[Batches, Batches]:
    """Training and validation batches of a run, which :func:`prepare_directory` describes.

    Pairs of ``generated_file`` are trained on too; ``settings`` are those that the recipe has of
    its own. Where a part on top of the model is trained, and not the model, ``trains_model`` is
    False.

    Raises:
      ValueError: the vocabulary is not the model's, or examples that it continues were to be
        joined; see also there.
    """
    if isinstance(files, SpeechRows):
        training, validation = (
            files.batches(split, model, batching) for split in ("train", "validation")
        )
    else:
        training, validation = _of_texts(model, vocabulary, files, batching, generated_file)
    data = training.fingerprint()
    settings |= {"total_steps": loop.total_steps, "seed": loop.seed, "data": data}
    prepare_directory(directory, model if trains_model else None, settings, vocabulary.path)
    return training, validation


def _of_texts(
    model: architectures.Config, vocabulary: Tokenizer, files: Files, batching: BatchingOptions,
    generated_file: str | None,
) -> tuple[Batches, Batches]:  # fmt: skip
    check_vocabulary(model, vocabulary)
    if len(batching.join_weights) > 1 and (model.reads_prefix or vocabulary.start_ids):
        raise ValueError(
            "A model that continues a text reads no joined ones, nor one whose texts begin with a "
            "token of their own: join_weights=(1,)."
        )
    generated = read_pairs(generated_file) if generated_file else []
    ends = None if model.reads_prefix else vocabulary.end_ids

    def batches(pairs: list[tuple[str, str]]) -> Batches:
        ids = ((vocabulary.encode(text), vocabulary.encode(output)) for text, output in pairs)
        tokens = [
            TokenPair(*teacher_forcing.training_pair(model, *each, vocabulary.start_ids))
            for each in ids
        ]
        return Batches(tokens, batching, vocabulary.eos_id, model.pad_id, ends)

    return batches([*files.read("train"), *generated]), batches(files.read("validation"))


def check_vocabulary(model: architectures.Config, vocabulary: Tokenizer) -> None:
    """Raises ValueError unless a model can be trained on texts of this vocabulary."""
    if model.vocab_size < len(vocabulary):
        raise ValueError(
            f"The vocabulary has {len(vocabulary)} pieces, the model only {model.vocab_size} rows."
        )
    if model.eos_id != vocabulary.eos_id:
        raise ValueError(
            f"The model's eos_id is {model.eos_id}; with this vocabulary it needs "
            f"{vocabulary.eos_id}."
        )
    pieces = vocabulary.spelling(len(vocabulary)).pieces
    in_texts = model.pad_id < len(vocabulary) and pieces[model.pad_id]
    in_texts = in_texts or model.pad_id in vocabulary.encode("\U00010000")  # Unknown: Linear B.
    if in_texts or model.pad_id == model.eos_id:
        raise ValueError(
            f"The model's pad_id is {model.pad_id}, which is a token of texts or their end, so it "
            "would not be learnt: choose a pad_id that no text has."
        )


def likeliest(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Whether each target token is the most probable one."""
    return jnp.argmax(logits, axis=-1) == targets
