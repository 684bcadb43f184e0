"""``results.json``: a run's numbers, and where they come from."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from specdec.core.machine import device_name
from specdec.core.stats import RunStats
from specdec.core.theory import block_speedup
from specdec.data.tasks import Metrics
from specdec.measure.kept_rows import Row
from specdec.measure.quality import Quality, TaskQuality
from specdec.measure.speed import BEAMS, CHAINS, Speed, predict
from specdec.measure.timing import Spread
from specdec.version import __version__

LIBRARIES = ("jax", "jaxlib", "flax", "numpy")


def numbers(
    rows: Iterable[Row],
    gamma: int,
    speed: Speed | None,
    *,
    checked: bool,
    metrics: Metrics | None = None,
) -> dict:
    """All that was counted and measured.

    Args:
      rows: every row of the run, at least one; gone through once and not kept.
      gamma: guesses in a row, levels of a tree; 0 for a plain decoding run, which has no rates and
        no speedup.
      speed: None where it was not measured.
      checked: whether rows were compared with plain decoding.
      metrics: the task's own, for which outputs and references are kept; BLEU and chrF if None.
    """
    totals: RunStats | None = None
    width_matched, mismatches = 0, []
    margins, rounding = array("f"), 0.0
    scorer = Quality() if metrics is None else TaskQuality(metrics)
    ends: Counter[str] = Counter()
    searched = False
    for row in rows:
        searched |= row.searched is not None
        ends.update(block.end for block in row.searched or ())
        counts = row.stats(gamma)
        totals = counts if totals is None else totals + counts
        width_matched += row.width_matched_mismatch is not None
        if row.mismatch is not None:
            where = {"position": row.mismatch.position, "top2_gap": row.mismatch.top2_gap}
            mismatches.append({"id": row.id, **where})
        if row.margins is not None:
            margins.extend(row.margins)
            rounding = max(rounding, row.rounding or 0.0)
        if row.output is not None and row.reference is not None:
            scorer.add(row.output, row.reference)
    assert totals is not None
    result: dict[str, Any] = {
        "num_examples": totals.num_rows,
        "num_tokens": totals.emitted,
        "target_calls": totals.target_calls,
        "proposed": totals.proposed,
        "alpha": totals.alpha,
        "acceptance_rate": totals.acceptance_rate,
        "draft_utilization": totals.draft_utilization,
        "block_efficiency": totals.block_efficiency,
        "accepted_histogram": list(totals.accepted_histogram),
        "accepted_by_rank": list(totals.accepted_by_rank),
        # Of speculative beams.
        "levels_per_call": 1 + totals.accepted / totals.target_calls if searched else None,
        "block_ends": dict(ends) if searched else None,
        "greedy_mismatches": len(mismatches) if checked else None,
        "greedy_mismatches_width_matched": width_matched if checked else None,
        "greedy_mismatch_rows": sorted(mismatches, key=lambda row: row["id"]),
        # Tokens whose two best logits are as near to each other as rounding moved others.
        "audit": {"rounding": rounding, "close": int(np.sum(np.asarray(margins) <= rounding))}
        if margins
        else None,
        "quality": scorer.scores(),
    }
    levels = result["levels_per_call"]
    return result | _measured(speed) | _predicted(totals, speed, levels)


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _measured(speed: Speed | None) -> dict[str, Any]:
    """The measured times; None where nothing was timed."""
    keys = ("cost_ratio", "verify_ratio", "measured_speedup", "measured_speedup_decoder")
    found: dict[str, Any] = {key: _median(getattr(speed, key, None)) for key in keys}
    if speed is None:
        return found | dict.fromkeys(("ms_per_token", "encode_ms", "spread", "timed"))
    spread = dataclasses.asdict(speed)
    timed = spread.pop("blocks")
    methods = CHAINS if CHAINS[0] in speed.ms_per_token else BEAMS
    per_token = {name: _median(speed.ms_per_token.get(name)) for name in methods}
    encoders = {name: _median(speed.encode_ms.get(name)) for name in ("target", "draft")}
    return found | {
        "ms_per_token": per_token,
        "encode_ms": encoders,
        # Everything measured, with its range over the repetitions.
        "spread": spread,
        # Counts of the texts that were timed.
        "timed": timed and {name: timed[name] for name in ("emitted", "target_calls", "proposed")},
    }


def _predicted(stats: RunStats, speed: Speed | None, levels: float | None) -> dict[str, Any]:
    """Speedups by theory; None where it does not apply."""
    names = ("", "_thm38", "_whole", "_counted")
    found: dict[str, Any] = dict.fromkeys(f"predicted_speedup{name}" for name in names)
    if speed is None or speed.cost_ratio is None or speed.verify_ratio is None:
        return found
    if levels is not None:
        c, v = speed.cost_ratio.median, speed.verify_ratio.median
        return found | {"predicted_speedup_whole": block_speedup(levels, stats.gamma, c, v)}
    prediction = predict(stats, speed)
    if stats.proposed < stats.gamma * stats.target_calls:
        # Not all blocks have gamma guesses, so only the counted ones count.
        return found | {"predicted_speedup_counted": prediction["predicted_speedup_counted"]}
    return found | prediction


def provenance() -> dict[str, Any]:
    """``date`` (UTC), ``device``, ``versions`` and ``git_sha`` (None outside a checkout)."""
    versions = {"specdec": __version__, "python": platform.python_version()}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device_name(),
        "versions": versions | {name: metadata.version(name) for name in LIBRARIES},
        "git_sha": _git_sha(),
    }


def _git_sha() -> str | None:
    def git(*arguments):
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
