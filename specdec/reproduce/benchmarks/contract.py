"""The contract of a benchmark with every system.

It imports no library: a system's process is to know only the libraries of that system.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.checkpoints.architectures import Config
    from specdec.decoding.beam_rules import BeamConfig


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
    draft: str | Config | None  # None: nothing but the target's own copy, or copying.
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
    # Audio files to transcribe, a row each, whose inputs are then empty; their tokens are text.
    recordings: tuple[str, ...] = ()
    seconds: float | None = None  # Each recording follows itself for so long; None for once.
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
        heard = not self.recordings or (
            len(self.recordings) == count and self.lengths is None and self.beam is None
        )
        self.require(heard, "recordings are a row each, end by themselves, and have no beams")
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
