"""specdec itself, as a user calls it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from specdec.api import VERIFIER, Method, Pair, load_pair
from specdec.benchmarks.random_models import EndlessT5, random_pair
from specdec.benchmarks.workload import Workload
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import make_batches
from specdec.drafters.model import model_draft
from specdec.models.base import LoadedModel
from specdec.types import SamplingConfig
from specdec.verifiers.forced import ForcedAcceptance


def load(workload: Workload, method: Method, options) -> Specdec:
    """See :mod:`specdec.benchmarks.systems`."""
    del options
    return Specdec(workload, method)


def pair_of(workload: Workload) -> Pair:
    """The workload's pair; one that never ends by itself where lengths are prescribed."""
    target, draft = workload.target, workload.draft
    if target.shape is not None and draft.shape is not None:
        return random_pair(target.shape, draft.shape, workload.dtype, workload.seed)
    pair = load_pair(target=target.checkpoint, draft=draft.checkpoint, dtype=workload.dtype)
    if workload.lengths is None:
        return pair

    def endless(loaded: LoadedModel) -> LoadedModel:
        return dataclasses.replace(loaded, model=EndlessT5(**vars(loaded.model)))

    assert pair.draft.model is not None
    drafted = model_draft(endless(pair.draft.model))
    return Pair(endless(pair.target), drafted, pair.vocabulary, pair.name)


def decoder_of(workload: Workload, pair: Pair, method: Method, limit: int) -> BatchDecoder:
    """What decodes the workload's batches."""
    forced = workload.forced_alpha
    return pair.decoder(
        method=method, gamma=workload.gamma, max_decode_len=limit, seed=workload.seed,
        sampling=SamplingConfig(temperature=workload.temperature), stop_below=workload.stop_below,
        verifier=VERIFIER if forced is None else ForcedAcceptance(forced),
    )  # fmt: skip


class Specdec:
    """Plain or speculative decoding."""

    def __init__(self, workload: Workload, method: Method):
        self.workload = workload
        self.method: Method = method
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
        self.pair = pair_of(workload)

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        workload = self.workload
        ids = [np.asarray(workload.inputs[row]) for row in rows]
        (batch,) = make_batches(ids, len(ids), self.pair.target.model)
        limit = workload.max_decode_len
        # Rows that end by themselves need no other limit; users do not know it.
        if lengths is not None and (workload.lengths is not None or max(lengths) == 1):
            limit = max(lengths)
        decoder = decoder_of(workload, self.pair, self.method, limit)
        result = decoder.decode(dataclasses.replace(batch, row_ids=np.asarray(rows, np.int32)))
        return [
            [int(t) for t in tokens[:count]]
            for tokens, count in zip(result.tokens, result.num_tokens, strict=True)
        ]
