"""specdec: ``transcribe``, greedy, without what repeats a decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import specdec
from specdec.core.progress import say
from specdec.reproduce.benchmarks.contract import Workload
from specdec.reproduce.benchmarks.systems.recordings import samples, shortened
from specdec.version import __version__

ONCE: dict[str, Any] = {
    "temperatures": (0.0,), "compression_ratio": None, "log_prob": None, "no_speech": None,
    "language": "en",
}  # fmt: skip

# One token leaves nothing to guess.
FIRST: dict[str, Any] = {"max_window_tokens": 1, "method": "autoregressive", "gamma": None}


class System:
    """``method``: autoregressive or speculative, perhaps with overlapping windows, and how many."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        del options
        way, *more = method.split(", ")
        self.versions = {"specdec": __version__}
        self._pair = specdec.load_pair(target=str(workload.target), draft=specdec.Quantized())
        self._heard = [samples(workload, row) for row in range(len(workload.recordings))]
        self._options: dict[str, Any] = ONCE | {"method": way}
        if way == "speculative":
            self._options["gamma"] = workload.gamma
        if more:
            self._options |= {"windows": "overlapping", "batch_size": int((more[1:] or [1])[0])}

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        """Tokens of text of each recording."""
        found = []
        for row in rows:
            heard, first = shortened(self._heard[row], lengths)
            options = self._options | (FIRST if first else {})
            result = self._pair.transcriber(**options).transcribe([heard])
            tokens = [t for each in result.transcripts[0].segments for t in each.tokens.tolist()]
            if result.stats is not None and not first and result.stats.gamma:
                say(f"{result.stats.block_efficiency:.2f} tokens a call")
            found.append(tokens or [0])
        return found
