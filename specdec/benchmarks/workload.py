"""What every system in a benchmark does: the same weights, inputs and output lengths."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.api import load_pair
from specdec.checkpoints import save_huggingface
from specdec.checkpoints.loading import resolve
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import init_params


class WorkloadError(ValueError):
    """A workload that cannot be run, or a system that did something else than it."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """Where a model comes from: a checkpoint, or random weights of a shape.

    Attributes:
      checkpoint: a directory in Hugging Face format; or
      shape: for weights drawn at random.

    Raises:
      WorkloadError: unless exactly one of the two is given.
    """

    checkpoint: str | None = None
    shape: T5Config | None = None

    def __post_init__(self):
        if (self.checkpoint is None) == (self.shape is None):
            raise WorkloadError("Weights come either from a checkpoint or from a shape.")


@dataclasses.dataclass(frozen=True)
class Workload:
    """Rows to decode, in batches of consecutive rows.

    Attributes:
      name: for tables.
      target, draft: the pair.
      inputs: token ids of each row, EOS included; rows of a batch are equally long.
      lengths: tokens to emit for each row, no more and no less; None where rows end by themselves
        (then the first system, which must be specdec's plain decoding, sets them for the others).
      max_decode_len: no row is longer.
      batch_size: rows decoded together; divides the number of rows.
      gamma: guesses a block.
      stop_below: see :class:`specdec.drafters.model.ModelDrafter`; specdec's own systems only.
      temperature: 0 for greedy.
      dtype: of weights and arithmetic, where a system's method does not say its own.
      forced_alpha: accept guesses with this probability whatever the target says (see
        :class:`specdec.verifiers.forced.ForcedAcceptance`); None for real acceptance.
      seed: of random weights and of sampling.

    Raises:
      WorkloadError: values that contradict each other.
    """

    name: str
    target: Weights
    draft: Weights
    inputs: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...] | None
    max_decode_len: int
    batch_size: int = 1
    gamma: int = 4
    stop_below: float = 0.0
    temperature: float = 0.0
    dtype: str = "float32"
    forced_alpha: float | None = None
    seed: int = 0

    def __post_init__(self):
        if not self.inputs:
            raise WorkloadError(f"Workload {self.name}: there is no row.")
        if self.batch_size < 1 or len(self.inputs) % self.batch_size:
            raise WorkloadError(
                f"Workload {self.name}: {len(self.inputs)} rows do not make whole batches of "
                f"{self.batch_size}."
            )
        if not 1 <= self.gamma < self.max_decode_len:
            raise WorkloadError(
                f"Workload {self.name}: gamma must be in [1, {self.max_decode_len - 1}], got "
                f"{self.gamma}."
            )
        if not 0 <= self.stop_below <= 1:
            raise WorkloadError(
                f"Workload {self.name}: stop_below must be in [0, 1], got {self.stop_below}."
            )
        if self.lengths is not None:
            if len(self.lengths) != len(self.inputs):
                raise WorkloadError(f"Workload {self.name}: each row needs a length.")
            if not all(1 <= length <= self.max_decode_len for length in self.lengths):
                raise WorkloadError(
                    f"Workload {self.name}: lengths must be in [1, {self.max_decode_len}]."
                )
        for rows in self.batches():
            if len({len(self.inputs[row]) for row in rows}) > 1:
                raise WorkloadError(
                    f"Workload {self.name}: the rows of a batch must be equally long; systems "
                    "differ in how they pad."
                )

    def batches(self) -> list[range]:
        """Rows of each batch."""
        return [
            range(start, start + self.batch_size)
            for start in range(0, len(self.inputs), self.batch_size)
        ]

    @property
    def label(self) -> str:
        """Its name, saying so where acceptance is forced."""
        if self.forced_alpha is None:
            return self.name
        return f"{self.name}, FORCED acceptance {self.forced_alpha:g}"

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The inverse of :meth:`to_json`."""
        fields: dict[str, Any] = json.loads(text)
        for role in ("target", "draft"):
            shape = fields[role]["shape"]
            fields[role]["shape"] = T5Config(**shape) if shape else None
            fields[role] = Weights(**fields[role])
        fields["inputs"] = tuple(tuple(row) for row in fields["inputs"])
        if fields["lengths"] is not None:
            fields["lengths"] = tuple(fields["lengths"])
        return cls(**fields)


def text(
    task: Task,
    pair: str = "quickstart",
    num_examples: int = 32,
    max_decode_len: int = 64,
    gamma: int = 3,
    stop_below: float = 0.0,
    temperature: float = 0.0,
) -> list[Workload]:
    """A bundled pair on real text, a row at a time; rows end by themselves.

    Args:
      task: where the texts come from.
      num_examples: how many, evenly spread.
    """
    chosen = evenly(task.examples, num_examples)
    loaded = load_pair(pair)
    ids = loaded.token_ids(model_inputs(chosen, loaded.vocabulary), max_input_len=512)
    return [
        Workload(
            name=f"{pair} on {task.name}",
            target=Weights(resolve(pair, "target")), draft=Weights(resolve(pair, "draft")),
            inputs=tuple(tuple(int(t) for t in row) for row in ids), lengths=None,
            max_decode_len=max_decode_len, gamma=gamma, stop_below=stop_below,
            temperature=temperature,
        )
    ]  # fmt: skip


def random_weights(
    name: str,
    target: T5Config,
    draft: T5Config,
    gamma: int,
    forced_alphas: Sequence[float],
    input_lens: Sequence[int] = (64,),
    output_lens: Sequence[int] = (64,),
    batch_sizes: Sequence[int] = (1,),
    temperature: float = 0.0,
    dtype: str = "float32",
    seed: int = 0,
) -> list[Workload]:
    """A pair of random weights, whose acceptance must be forced; one workload a combination.

    Args:
      input_lens, output_lens: tokens a row, EOS included.
    """
    workloads = []
    for input_len, output_len, batch_size, alpha in itertools.product(
        input_lens, output_lens, batch_sizes, forced_alphas
    ):
        generator = np.random.default_rng(seed)
        shape = (batch_size, input_len - 1)
        tokens = generator.integers(2, target.vocab_size, shape)
        workloads.append(
            Workload(
                name=f"{name}, batch {batch_size}, input {input_len}, output {output_len}",
                target=Weights(shape=target), draft=Weights(shape=draft),
                inputs=tuple((*map(int, row), target.eos_id) for row in tokens),
                lengths=(output_len,) * batch_size, max_decode_len=output_len,
                batch_size=batch_size, gamma=gamma, temperature=temperature, dtype=dtype,
                forced_alpha=alpha, seed=seed,
            )
        )  # fmt: skip
    return workloads


def exported(weights: Weights, directory: Path, seed: int) -> Weights:
    """Random weights as a checkpoint under ``directory`` that every system reads; made once."""
    if weights.shape is None:
        return weights
    name = f"{zlib.crc32(f'{weights.shape} {seed}'.encode()):08x}"
    if not (directory / name / "config.json").is_file():
        params = init_params(weights.shape, jax.random.key(seed))
        save_huggingface(directory / name, weights.shape, jax.device_get(params))
    return Weights(checkpoint=str(directory / name))
