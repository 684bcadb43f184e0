"""Token and block verification compared over the rows of a decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.api import load_pair
from specdec.core.theory_measured import cluster_interval
from specdec.data.tasks import model_inputs
from specdec.decoding.batches import Batch, make_batches
from specdec.measure import expected_accepted
from specdec.measure.rows import measure_rows
from specdec.runs.decode_run import DecodeRun


def expect_rows(run: DecodeRun, path: Path) -> list[expected_accepted.RowExpectation]:
    """What either verification is expected to keep of each row's blocks; continues a file."""
    pair = load_pair(target=run.target, draft=run.draft, dtype=run.dtype)
    ids = pair.token_ids(
        model_inputs(run.task.examples, pair.vocabulary), max_input_len=run.max_input_len
    )
    decoder = pair.decoder(
        method="speculative", gamma=run.guesses, sampling=run.sampling,
        max_decode_len=run.max_decode_len, seed=run.seed,
    )  # fmt: skip

    def expect(
        batch: Batch, wanted: Mapping[int, int]
    ) -> Iterator[expected_accepted.RowExpectation]:
        sums = expected_accepted.decode_and_expect(
            decoder.engine, *decoder.arguments(batch), output_bucket=decoder.output_bucket
        )
        sums = jax.tree.map(np.asarray, sums)
        for row, place in wanted.items():
            yield expected_accepted.RowExpectation(
                row, int(sums.blocks[place]), float(sums.token[place]), float(sums.block[place])
            )

    batches = list(make_batches(ids, run.batch_size, pair.target.model))
    return measure_rows(path, batches, expected_accepted.RowExpectation, expect)


def block_difference(token: Sequence[np.ndarray], block: Sequence[np.ndarray]) -> dict[str, Any]:
    """Block efficiencies and their difference, with a 95 % interval by rows.

    Args:
      token, block: tokens and target calls of each row, in the same order of rows.
    """
    efficiency = [float(tokens.sum() / calls.sum()) for tokens, calls in (token, block)]
    # Each ratio linearised, row by row: what is common to a row cancels in the difference.
    parts = [
        (tokens - mean * calls) / calls.mean()
        for mean, (tokens, calls) in zip(efficiency, (token, block), strict=True)
    ]
    gain = efficiency[1] - efficiency[0]
    low, high = cluster_interval(parts[1] - parts[0], np.ones(len(parts[0])))
    return {
        "token": efficiency[0],
        "block": efficiency[1],
        "difference": gain,
        "interval": (gain + low, gain + high),
        "num_rows": len(parts[0]),
    }
