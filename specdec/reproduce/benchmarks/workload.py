"""Workloads, as configurations name them: weights, inputs and output lengths."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from specdec.checkpoints import save_huggingface
from specdec.checkpoints.architectures import Config, decode_model, init_params
from specdec.checkpoints.loading import resolve
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.beam_rules import BeamConfig
from specdec.drafters.copying import Copying
from specdec.load import load_pair
from specdec.reproduce.benchmarks.contract import Workload, WorkloadError


def text(
    task: Task, pair: str = "quickstart", num_examples: int = 32, max_decode_len: int = 64,
    gamma: int = 3, temperature: float = 0.0,
    beam: BeamConfig | None = None,
) -> list[Workload]:  # fmt: skip
    """A bundled pair on ``num_examples`` texts of a task, evenly spread, a row at a time.

    Rows end by themselves.
    """
    searched = f", {beam}" if beam else ""
    loaded = load_pair(pair)
    texts = model_inputs(evenly(task.examples, num_examples), loaded.vocabulary)
    ids = loaded.token_ids(texts, max_input_len=512)
    return [Workload(
        f"{pair} on {task.name}{searched}", resolve(pair, "target"), resolve(pair, "draft"),
        tuple(tuple(map(int, row)) for row in ids), None, max_decode_len, gamma=gamma,
        temperature=temperature, beam=beam,
    )]  # fmt: skip


def prompts(
    target: str, texts: Sequence[str], max_decode_len: int = 64, gamma: int = 3,
    dtype: str = "float32", input_len: int | None = None,
) -> list[Workload]:  # fmt: skip
    """A checkpoint on prompts, a row at a time; no other model drafts.

    Args:
      input_len: tokens that prompts are cut to, so that they make batches; their rows then go on to
        ``max_decode_len``. None: rows end by themselves.

    Raises:
      WorkloadError: a prompt is shorter than ``input_len``.
    """
    loaded = load_pair(target=target, draft=Copying())
    ids = loaded.token_ids(texts, max_input_len=512)
    if input_len is not None and (shortest := min(map(len, ids))) < input_len:
        raise WorkloadError(f"A prompt has {shortest} tokens, and input_len is {input_len}.")
    lengths = None if input_len is None else (max_decode_len,) * len(ids)
    return [Workload(
        Path(target).name, resolve(target, "target"), None,
        tuple(tuple(map(int, row[:input_len])) for row in ids), lengths, max_decode_len,
        gamma=gamma, dtype=dtype,
    )]  # fmt: skip


def recordings(
    target: str, files: Sequence[str], seconds: float | None = None, gamma: int = 6
) -> list[Workload]:
    """A checkpoint that listens to audio files, each of which follows itself for some seconds."""
    name = f"{Path(target).name} on {', '.join(Path(file).stem for file in files)}"
    return [Workload(
        name + (f" for {seconds:g} s" if seconds else ""),
        resolve(target, "target"), None, ((),) * len(files), None, 448, gamma=gamma,
        recordings=tuple(map(str, files)), seconds=seconds,
    )]  # fmt: skip


def random_weights(
    name: str, target: Config, draft: Config, gamma: int, forced_alphas: Sequence[float | None],
    input_lens: Sequence[int] = (64,), output_lens: Sequence[int] = (64,),
    batch_sizes: Sequence[int] = (1,), temperature: float = 0.0, dtype: str = "float32",
    stored: str = "float32", seed: int = 0,
) -> list[Workload]:  # fmt: skip
    """A pair of random weights; one workload a combination.

    Acceptance must be forced where something drafts. None for plain decoding alone, whose tokens
    are compared.

    ``input_lens`` and ``output_lens`` are tokens a row. Inputs end with EOS where an encoder reads
    them.
    """
    model = decode_model(target)
    end = () if model.reads_prefix else model.eos_ids[:1]

    def workload(input_len: int, output_len: int, batch_size: int, alpha: float | None) -> Workload:
        shape = (batch_size, input_len - len(end))
        tokens = np.random.default_rng(seed).integers(2, target.vocab_size, shape)
        return Workload(
            f"{name}, batch {batch_size}, input {input_len}, output {output_len}", target, draft,
            tuple((*map(int, row), *end) for row in tokens), (output_len,) * batch_size,
            output_len, batch_size, gamma, temperature=temperature, dtype=dtype,
            stored=stored, forced_alpha=alpha, seed=seed,
        )  # fmt: skip

    combinations = itertools.product(input_lens, output_lens, batch_sizes, forced_alphas)
    return list(itertools.starmap(workload, combinations))


def exported(weights: str | Config | None, directory: Path, seed: int, stored: str) -> str | None:
    """Random weights as a checkpoint under ``directory`` that every system reads; made once."""
    if weights is None or isinstance(weights, str):
        return weights
    path = directory / f"{zlib.crc32(f'{weights} {seed} {stored}'.encode()):08x}"
    if not (path / "config.json").is_file():
        params = init_params(weights, jax.random.key(seed))
        save_huggingface(path, weights, jax.device_get(params), dtype=stored)
    return str(path)
