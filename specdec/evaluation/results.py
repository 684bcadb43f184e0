"""``results.json``: a run's numbers, and where they come from."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from specdec.core.machine import device_name
from specdec.core.stats import RunStats
from specdec.data.tasks import Metrics
from specdec.evaluation.decodes import Row, total_stats
from specdec.evaluation.quality import quality
from specdec.evaluation.speed import Speed, predict

LIBRARIES = ("jax", "jaxlib", "flax", "numpy")


def numbers(
    rows: Sequence[Row],
    gamma: int,
    speed: Speed | None,
    *,
    greedy: bool,
    metrics: Metrics | None = None,
) -> dict:
    """All that was counted and measured.

    Args:
      rows: every row of the run, by id.
      gamma: guesses a block; 0 for a plain decoding run, which has no rates and no speedup.
      speed: None where it was not measured.
      greedy: whether rows were compared with plain decoding.
      metrics: the task's own; BLEU and chrF if None.
    """
    stats = total_stats(rows, gamma)
    compared = greedy and gamma > 0
    result: dict[str, Any] = {
        "num_examples": len(rows),
        "num_tokens": stats.emitted,
        "target_calls": stats.target_calls,
        "proposed": stats.proposed,
        "alpha": stats.alpha,
        "acceptance_rate": stats.acceptance_rate,
        "draft_utilization": stats.draft_utilization,
        "block_efficiency": stats.block_efficiency,
        "accepted_histogram": list(stats.accepted_histogram),
        "greedy_mismatches": sum(r.mismatch is not None for r in rows) if compared else None,
        "greedy_mismatches_width_matched": (
            sum(r.width_matched_mismatch is not None for r in rows) if compared else None
        ),
        "greedy_mismatch_rows": [
            {"id": r.id, "position": r.mismatch.position, "top2_gap": r.mismatch.top2_gap}
            for r in rows
            if r.mismatch is not None
        ],
        "quality": _quality(rows, metrics or quality),
    }
    return result | _speed(stats, speed)


def _quality(rows: Sequence[Row], metrics: Metrics) -> dict[str, float] | None:
    pairs = [
        (row.output, row.reference)
        for row in rows
        if row.output is not None and row.reference is not None
    ]
    return metrics(*zip(*pairs, strict=True)) if pairs else None


def _speed(stats: RunStats, speed: Speed | None) -> dict[str, Any]:
    def median(spread):
        return None if spread is None else spread.median

    keys = ("cost_ratio", "verify_ratio", "measured_speedup", "measured_speedup_decoder")
    result: dict[str, Any] = {key: median(getattr(speed, key, None)) for key in keys}
    predictions = {
        "predicted_speedup": "decoder",
        "predicted_speedup_thm38": "theorem_3_8",
        "predicted_speedup_whole": "whole",
        "predicted_speedup_counted": "counted",
    }
    result |= dict.fromkeys(predictions)
    if speed is None:
        return result | {"ms_per_token": None, "encode_ms": None, "spread": None}
    if stats.alpha is not None:
        prediction = predict(stats, speed)
        if stats.proposed < stats.gamma * stats.target_calls:
            # Not all blocks have gamma guesses, so only the counted ones tell.
            predictions = {"predicted_speedup_counted": "counted"}
        result |= {key: getattr(prediction, name) for key, name in predictions.items()}

    def pick(spreads, names):
        return {name: median(spreads.get(name)) for name in names}

    return result | {
        "ms_per_token": pick(speed.ms_per_token, ("autoregressive", "speculative")),
        "encode_ms": pick(speed.encode_ms, ("target", "draft")),
        # Everything measured, with its range over the repetitions.
        "spread": dataclasses.asdict(speed),
    }


def provenance() -> dict[str, Any]:
    """``device``, ``versions`` and ``git_sha`` (None outside a checkout)."""
    import specdec

    versions = {"specdec": specdec.__version__, "python": platform.python_version()}
    return {
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


def write_text(path: Path, text: str) -> None:
    """Replaces a file at once: a reader sees the old text or the new, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Writes ``results.json`` at once."""
    write_text(path, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
