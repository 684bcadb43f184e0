"""specdec itself, as a user calls it; random weights are made where they are used."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.api import VERIFIER, Method, Pair, load_pair
from specdec.benchmarks.workload import Workload
from specdec.checkpoints.loading import draft_kernel_dtype, loaded_t5
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import make_batches
from specdec.drafters.model import model_draft
from specdec.models.base import LoadedModel
from specdec.models.t5.config import T5Config
from specdec.models.t5.model import T5Model
from specdec.models.t5.network import init_params
from specdec.models.t5.packing import PackedT5
from specdec.types import SamplingConfig
from specdec.verifiers.forced import ForcedAcceptance


@dataclasses.dataclass(frozen=True)
class EndlessT5(T5Model):
    """A T5 whose rows end at the length limit only."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return ()


def _random_packed(model: T5Model, seed: int, narrow: str | None) -> PackedT5:
    """Decode parameters drawn array by array on the device: a checkpoint never exists.

    Norm scales are 1; all else is normal with standard deviation 0.02.
    """

    @functools.partial(jax.jit, static_argnames=("shape", "dtype"))
    def draw(key, shape, dtype):
        return (0.02 * jax.random.normal(key, shape)).astype(dtype)

    packed = jax.eval_shape(
        lambda: model.pack(init_params(model.config, jax.random.key(0)), narrow=narrow)
    )
    leaves, tree = jax.tree.flatten(packed)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(tree, [
        jnp.ones(leaf.shape, leaf.dtype) if leaf.ndim == 1 else draw(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ])  # fmt: skip


def random_pair(target: T5Config, draft: T5Config, dtype: str, seed: int) -> Pair:
    """A pair of endless models."""

    def load(config: T5Config, seed: int, narrow: str | None = None) -> LoadedModel:
        model = EndlessT5(dataclasses.replace(config, dtype=dtype))
        return loaded_t5(model, _random_packed(model, seed, narrow), "random weights")

    drafted = load(draft, seed + 1, draft_kernel_dtype(dtype))
    return Pair(load(target, seed), model_draft(drafted), None, "random")


def pair_of(workload: Workload) -> Pair:
    """The workload's pair; one that never ends by itself where lengths are prescribed."""
    target, draft = workload.target, workload.draft
    if isinstance(target, T5Config) and isinstance(draft, T5Config):
        return random_pair(target, draft, workload.dtype, workload.seed)
    pair = load_pair(target=str(target), draft=str(draft), dtype=workload.dtype)
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


class System:
    """Plain or speculative decoding."""

    def __init__(self, workload: Workload, method: Method, options: Mapping[str, Any]):
        del options  # The process has its threads already.
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
