"""specdec itself, as a user calls it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from specdec.api import VERIFIER, Method, Pair, load_pair
from specdec.benchmarks.random_models import EndlessT5, random_pair
from specdec.benchmarks.workload import Workload
from specdec.checkpoints.loading import LoadedModel
from specdec.decoding.batches import Batch, make_batches
from specdec.drafts import ModelDraft
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

    assert isinstance(pair.draft, ModelDraft)
    draft = ModelDraft(endless(pair.draft.loaded))
    return Pair(endless(pair.target), draft, pair.vocabulary, pair.name)


class Specdec:
    """Plain or speculative decoding."""

    def __init__(self, workload: Workload, method: Method):
        self.workload = workload
        self.method: Method = method
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
        self.pair = pair_of(workload)
        self.verifier = VERIFIER
        if workload.forced_alpha is not None:
            self.verifier = ForcedAcceptance(workload.forced_alpha)

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        workload = self.workload
        ids = [np.asarray(workload.inputs[row]) for row in rows]
        (batch,) = make_batches(ids, len(ids), self.pair.target.model.pad_id)
        limit = workload.max_decode_len
        # Rows that end by themselves need no other limit; users do not know it.
        if lengths is not None and (workload.lengths is not None or max(lengths) == 1):
            limit = max(lengths)
        result = self.pair.decode(
            Batch(batch.inputs, np.asarray(rows, np.int32)),
            method=self.method, gamma=workload.gamma,
            sampling=SamplingConfig(temperature=workload.temperature), max_decode_len=limit,
            seed=workload.seed, verifier=self.verifier, stop_below=workload.stop_below,
        )  # fmt: skip
        return [
            [int(t) for t in tokens[:count]]
            for tokens, count in zip(result.tokens, result.num_tokens, strict=True)
        ]
