"""A target's own outputs on the training inputs, for a draft to learn from.

Sources: sequence-level knowledge distillation (Kim & Rush 2016); on the target's own outputs a
draft meets the prefixes that it will be asked to continue (Zhou et al. 2024, DistillSpec).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from specdec.checkpoints.architectures import decode_model
from specdec.core.arguments import whole
from specdec.core.progress import Progress, say
from specdec.data.tasks import evenly
from specdec.data.text import read_pairs, write_pairs
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.options import GREEDY
from specdec.training.checkpointing import load_params, load_vocabulary
from specdec.training.recombine import Recombination
from specdec.training.train import TextFiles
from specdec.training.validation import decode_rows

FILE_NAME = "generated.tsv"


def generate(
    directory: str | os.PathLike,
    *,
    files: TextFiles,
    target: str,
    lengths: Sequence[int] = (8, 12, 16, 24, 32, 64, 128),
    tokens_per_batch: int = 2048,
    recombination: Recombination | None = None,
    count: int | None = None,
    held_out: Sequence[str] = ("validation.tsv",),
) -> None:
    """Writes ``generated.tsv``: every distinct training input, and the target's greedy output.

    Outputs that are empty or do not end within the length limit are left out and counted.

    Args:
      target: its training run, or a checkpoint: a directory, a hub id or "quickstart".
      lengths: static input lengths in tokens, ascending, EOS included; an output may have twice
        as many tokens as its input's length. Longer inputs are left out too.
      tokens_per_batch: rows * length of a batch.
      recombination: makes new inputs of the training inputs, which are used instead of them.
      count: of inputs, spread evenly over all; None for each of them.
      held_out: files of pairs beside the training file, of which no input may be made again.

    Raises:
      FileNotFoundError, ValueError: missing or malformed data or target; too few new inputs.
    """
    config, weights = load_params(target)
    config = dataclasses.replace(config, dtype="float32")  # As it will be decoded.
    vocabulary = load_vocabulary(target)
    model = decode_model(config)
    engine, params = Engine(model), EngineParams(model.pack(weights), GREEDY.traced())
    inputs = list(dict.fromkeys(source for source, _ in files.read("train")))
    if recombination:
        tables = (read_pairs(Path(files.directory) / name) for name in held_out)
        inputs = recombination(inputs, {source for table in tables for source, _ in table})
    if count is not None:
        inputs = evenly(inputs, whole("count", count, 1))
    ids = [vocabulary.encode(text, add_eos=True) for text in inputs]
    outputs: dict[int, str] = {}
    batches = list(_batches([len(row) for row in ids], lengths, tokens_per_batch))
    with Progress(len(batches), "batches") as progress:
        for length, members in batches:
            rows, shape = [ids[member] for member in members], (tokens_per_batch // length, length)
            decoded, _ = decode_rows(engine, params, rows, members, shape, 2 * length)
            for member, output in zip(members, decoded, strict=True):
                text = vocabulary.decode(output)
                if output[-1] == config.eos_id and text.strip():
                    outputs[member] = text
            progress.add(kind=length)
    pairs = [(inputs[member], outputs[member]) for member in sorted(outputs)]
    say(f"{len(inputs)} inputs, {len(inputs) - len(pairs)} left out")
    write_pairs(Path(directory) / FILE_NAME, pairs)


def _batches(
    sizes: Sequence[int], lengths: Sequence[int], tokens_per_batch: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(static length, row numbers) of each batch: rows of like sizes together, so that few wait."""
    order = np.argsort(sizes, kind="stable")
    bounds = np.searchsorted(np.asarray(sizes)[order], lengths, side="right")
    begin = 0
    for length, end in zip(lengths, bounds, strict=True):
        rows = tokens_per_batch // length
        for at in range(begin, end, rows):
            yield length, order[at : min(at + rows, end)]
        begin = end
