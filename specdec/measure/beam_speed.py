"""Speed of speculative beams, measured beside plain beams."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from specdec.core.theory import block_speedup
from specdec.decoding.batches import Batch, commonest
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.measure.beam_choice import measure_costs
from specdec.measure.timing import Spread, Work, time_interleaved


def measure(
    plain: BeamDecoder, fast: SpeculativeBeamDecoder | None, batches: Sequence[Batch],
    repetitions: int, levels: float,
) -> dict[str, Any]:  # fmt: skip
    """Times whole searches of ``batches``, interleaved, and predicts their ratio from v and c.

    Args:
      fast: speculative beams; None for a run of plain ones.
      levels: number that a call of theirs advances.

    Returns:
      the keys of ``results.json`` about speed: medians, and "spread" with the ranges.
    """
    searchers = {"beam": plain} | ({} if fast is None else {"speculative_beam": fast})
    works, tokens = [], dict.fromkeys(searchers, 0)
    for name, each in searchers.items():
        for batch in batches:
            tokens[name] += int(each.decode(batch).stats.emitted.sum())
            works.append(Work(name, functools.partial(each.decode, batch), batch.shape))
    times = time_interleaved(works, repetitions)
    per_token = {
        name: Spread.of(1e3 * seconds[name] / count for seconds in times)
        for name, count in tokens.items()
    }
    found: dict[str, Any] = {"ms_per_token": {n: each.median for n, each in per_token.items()}}
    spread: dict[str, Any] = {
        "repetitions": repetitions, "encode_ms": {}, "measured_speedup": None,
        "ms_per_token": {name: dataclasses.asdict(each) for name, each in per_token.items()},
    }  # fmt: skip
    if fast is not None:
        gamma = fast.gamma
        verify, cost = measure_costs(plain, fast, commonest(batches)[0])
        speedup = Spread.of(each["beam"] / each["speculative_beam"] for each in times)
        spread["measured_speedup"] = dataclasses.asdict(speedup)
        found |= {
            "cost_ratio": cost, "verify_ratio": verify, "measured_speedup": speedup.median,
            "predicted_speedup_whole": block_speedup(levels, gamma, cost, verify),
        }  # fmt: skip
    return found | {"spread": spread}
