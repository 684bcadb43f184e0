"""specdec's beams, plain or guessed by the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from specdec.decoding.batches import make_batches
from specdec.reproduce.benchmarks.systems.specdec_loop import VARIANTS, pair_of
from specdec.reproduce.benchmarks.workload import Workload


class System:
    """``method`` is of :data:`specdec.reproduce.benchmarks.systems.specdec_loop.VARIANTS`."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        del options  # The process has its threads already.
        assert workload.beam is not None
        variant = VARIANTS[method]
        pair = pair_of(workload, variant)
        self.inputs = [np.asarray(ids) for ids in workload.inputs]
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
        guesses = variant.method == "speculative"
        self.decoder = pair.searcher(
            method="speculative_beam" if guesses else "beam", beam=workload.beam,
            gamma=workload.gamma if guesses else None, max_decode_len=workload.max_decode_len,
        )  # fmt: skip

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        """The best hypothesis of each row."""
        model = self.decoder.target.model
        (batch,) = make_batches([self.inputs[row] for row in rows], len(rows), model)
        result = self.decoder.decode(batch, limit=max(lengths) if lengths else None)
        return [result.row(index, 1)[0].tokens.tolist() for index in range(len(rows))]
