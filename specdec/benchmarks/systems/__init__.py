"""The systems a benchmark knows: one file for each library, several methods in some.

Each file has ``load(workload, method, options)``, which returns an object with

    decode(rows, lengths) -> a list of token ids for each row (without the decoder's start token)
    versions: names and versions of what ran

``rows`` are row numbers of the workload; ``lengths`` says how many tokens to emit for each of them,
or is None where rows end by themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class System(Protocol):
    """One library with one method, loaded in this process."""

    versions: Mapping[str, str]

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        """Decodes one batch and waits for it."""
        ...


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a system is found.

    Attributes:
      module: in this package.
      method: what ``load`` is told.
      needs: packages whose absence makes the system absent.
      exact: whether it does the workload's own arithmetic, so that its tokens must be the same.
      own: whether it is specdec: reads random weights, samples, forces acceptance.
    """

    module: str
    method: str
    needs: tuple[str, ...] = ()
    exact: bool = True
    own: bool = False


SYSTEMS: dict[str, Entry] = {
    "specdec autoregressive": Entry("specdec_t5", "autoregressive", own=True),
    "specdec speculative": Entry("specdec_t5", "speculative", own=True),
    "transformers greedy": Entry("huggingface", "greedy", ("torch", "transformers")),
    "transformers assisted": Entry("huggingface", "assisted", ("torch", "transformers")),
    "transformers assisted, constant gamma": Entry(
        "huggingface", "assisted_constant", ("torch", "transformers")
    ),
    "CTranslate2 float32": Entry("ct2", "float32", ("ctranslate2", "torch", "transformers")),
    "CTranslate2 int8": Entry("ct2", "int8", ("ctranslate2", "torch", "transformers"), exact=False),
    "T5X": Entry("t5x_greedy", "greedy"),
}

Options = Mapping[str, Any]
