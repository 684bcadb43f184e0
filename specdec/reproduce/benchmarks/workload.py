"""The task of every system in a benchmark: the same weights, inputs and output lengths."""

from __future__ import annotations

import dataclasses
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
from specdec.load import load_pair


class WorkloadError(ValueError):
    """A workload that cannot be run, or a system that did something else than it."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Rows to decode, in batches of consecutive rows.

    Raises:
      WorkloadError: values that contradict each other.
    """

    name: str  # For tables.
    # A checkpoint's directory in Hugging Face format, or a shape whose weights are drawn at random.
    target: str | Config
    draft: str | Config
    # Token ids of each row as the models take them; rows of a batch are equally long.
    inputs: tuple[tuple[int, ...], ...]
    # Tokens to emit for each row, no more and no less; None where rows end by themselves (then the
    # first system, which must be specdec's plain decoding, sets them for the others).
    lengths: tuple[int, ...] | None
    max_decode_len: int  # No row is longer.
    batch_size: int = 1  # Rows decoded together; divides the number of rows.
    gamma: int = 4  # Guesses a block.
    temperature: float = 0.0  # 0 for greedy.
    # Of weights and arithmetic, where a system's method does not say its own.
    dtype: str = "float32"
    stored: str = "float32"  # Of random weights that are exported.
    # Accept guesses with this probability, not by the target's distribution (see
    # `ForcedAcceptance`); None for real acceptance.
    forced_alpha: float | None = None
    beam: BeamConfig | None = None  # Beam search instead of sampling.
    seed: int = 0  # Of random weights and of sampling.

    def __post_init__(self):
        size, count = self.batch_size, len(self.inputs)
        self.require(count > 0, "there is no row")
        whole = size > 0 and count % size == 0
        self.require(whole, f"{count} rows do not make whole batches of {size}")
        most = self.max_decode_len - 1
        self.require(1 <= self.gamma <= most, f"gamma must be in [1, {most}], got {self.gamma}")
        if self.beam is not None:
            plain = self.lengths is None and self.forced_alpha is None and self.temperature == 0
            self.require(plain, "beams end by themselves, and neither sample nor are forced")
        self.require(
            all(len({len(self.inputs[row]) for row in rows}) == 1 for rows in self.batches()),
            "the rows of a batch must be equally long; systems differ in how they pad",
        )

    def require(self, holds: bool, otherwise: str) -> None:
        """Raises WorkloadError, with the workload's name, unless ``holds``."""
        if not holds:
            raise WorkloadError(f"Workload {self.name}: {otherwise}.")

    def batches(self) -> list[range]:
        """Rows of each batch."""
        size = self.batch_size
        return [range(start, start + size) for start in range(0, len(self.inputs), size)]

    @property
    def label(self) -> str:
        """The name, marked where acceptance is forced."""
        if self.forced_alpha is None:
            return self.name
        return f"{self.name}, FORCED acceptance {self.forced_alpha:g}"


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


def exported(weights: str | Config, directory: Path, seed: int, stored: str) -> str:
    """Random weights as a checkpoint under ``directory`` that every system reads; made once."""
    if isinstance(weights, str):
        return weights
    path = directory / f"{zlib.crc32(f'{weights} {seed} {stored}'.encode()):08x}"
    if not (path / "config.json").is_file():
        params = init_params(weights, jax.random.key(seed))
        save_huggingface(path, weights, jax.device_get(params), dtype=stored)
    return str(path)
