"""specdec itself, as a user calls it; random weights are made where they are used."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from specdec.api import Pair
from specdec.checkpoints.architectures import Config, decode_model, init_params
from specdec.checkpoints.loading import as_loaded, draft_kernel_dtype
from specdec.decoding.batch_decoder import BatchDecoder, LoopDecoder
from specdec.decoding.batches import make_batches
from specdec.decoding.options import Method
from specdec.decoding.target import LoadedTarget
from specdec.drafters.copying import Copying
from specdec.drafters.model import model_draft
from specdec.drafters.quantized import Quantized
from specdec.load import load_pair
from specdec.models.base import LoadedModel
from specdec.models.products.quantized import GROUP
from specdec.models.transformer.model import TransformerModel
from specdec.reproduce.benchmarks.contract import Workload
from specdec.testing.forced import ForcedAcceptance
from specdec.types import Params, SamplingConfig

Loaded = TypeVar("Loaded", bound=LoadedModel)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to decode a workload."""

    method: Method
    # None for the checkpoint's; "float32" widens them when they are loaded, "int8" rounds them.
    weights: Literal["float32", "int8"] | None = None
    quantized: bool = False  # The draft is the target's own copy in 8 bits.
    # More of :class:`Decoding`.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


VARIANTS = {
    "autoregressive": Variant("autoregressive"),
    "autoregressive_float32": Variant("autoregressive", "float32"),
    "autoregressive_int8": Variant("autoregressive", "int8"),
    "speculative": Variant("speculative"),
    "speculative_quantized": Variant("speculative", quantized=True),
    "speculative_int8": Variant("speculative", "int8"),
    "autoregressive_exact": Variant("autoregressive", options={"exact": True}),
    "speculative_exact": Variant("speculative", quantized=True, options={"exact": True}),
    "tree_exact": Variant(
        "speculative", quantized=True, options={"exact": True, "tree": (2, 1, 1), "gamma": None}
    ),
}


def endless(model: TransformerModel) -> TransformerModel:
    """This model, but its rows end at the length limit only."""
    config = dataclasses.replace(model.config, eos_id=None, more_eos_ids=())
    return dataclasses.replace(model, config=config)


def _random_packed(model: TransformerModel, seed: int, narrow: str | None) -> Params:
    """Decode parameters drawn array by array on the device: a checkpoint never exists.

    Norm scales are 1; all else is normal with standard deviation 0.02.
    """

    @functools.partial(jax.jit, static_argnames=("shape", "dtype"))
    def draw(key, shape, dtype):
        return (0.02 * jax.random.normal(key, shape)).astype(dtype)

    packed = jax.eval_shape(
        lambda: model.pack(init_params(model.config, jax.random.key(0)), narrow=narrow)
    )
    leaves, tree = jax.tree_util.tree_flatten_with_path(packed)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def drawn(path, leaf, key):
        if path[-1].name == "norm_scale":
            return jnp.ones(leaf.shape, leaf.dtype)
        return draw(key, leaf.shape, leaf.dtype)

    arrays = [drawn(path, leaf, key) for (path, leaf), key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, arrays)


def random_pair(target: Config, draft: Config, dtype: str, seed: int, variant: Variant) -> Pair:
    """A pair of endless models."""

    def load(config: Config, seed: int, narrow: str | None = None) -> LoadedTarget:
        model = endless(decode_model(dataclasses.replace(config, dtype=dtype)))
        return as_loaded(model, _random_packed(model, seed, narrow), "random weights")

    first = load(target, seed)
    if variant.quantized:
        return Pair(first, model_draft(first.quantized(8, GROUP, True)), None, "random")
    drafted = load(draft, seed + 1, draft_kernel_dtype(dtype))
    return Pair(first, model_draft(drafted), None, "random")


def pair_of(workload: Workload, variant: Variant) -> Pair:
    """The workload's pair; one that never ends by itself where lengths are prescribed.

    A target in 8 bits is another model: it gets the full weights' lengths, as other libraries'
    8-bit models do.

    Raises:
      WorkloadError: weights that are drawn at random here were to be rounded to 8 bits.
    """
    source, other = workload.target, workload.draft
    if not isinstance(source, str) and other is not None and not isinstance(other, str):
        workload.require(variant.weights is None, "its weights must be exported for other formats")
        return random_pair(source, other, workload.dtype, workload.seed, variant)
    spec = Copying() if other is None else str(other)
    pair = load_pair(
        target=str(source), draft=Quantized() if variant.quantized else spec,
        dtype=workload.dtype, weights="int8" if variant.weights == "int8" else None,
    )  # fmt: skip
    if variant.weights == "float32":
        wide = jax.tree.map(
            lambda leaf: leaf.astype(jnp.float32) if leaf.dtype.itemsize == 2 else leaf,
            pair.target.params,
        )
        target = dataclasses.replace(pair.target, params=wide)
        pair = Pair(target, pair.draft, pair.vocabulary, pair.name)
    if not _has_fixed_lengths(workload, variant):
        return pair

    def without_end(loaded: Loaded) -> Loaded:
        assert isinstance(loaded.model, TransformerModel)
        return dataclasses.replace(loaded, model=endless(loaded.model))

    draft = pair.draft
    if draft.model is not None:
        draft = model_draft(without_end(draft.model))
    return Pair(without_end(pair.target), draft, pair.vocabulary, pair.name)


def _has_fixed_lengths(workload: Workload, variant: Variant) -> bool:
    return workload.lengths is not None or variant.weights == "int8"


def decoder_of(workload: Workload, pair: Pair, variant: Variant) -> BatchDecoder:
    """Decoder of the workload's batches."""
    forced = workload.forced_alpha
    own = {
        "method": variant.method, "gamma": workload.gamma,
        "max_decode_len": workload.max_decode_len,
        "sampling": SamplingConfig(temperature=workload.temperature),
        "verifier": None if forced is None else ForcedAcceptance(forced), "seed": workload.seed,
    }  # fmt: skip
    return pair.decoder(**own | dict(variant.options))


class System:
    """Plain or speculative decoding or beams; ``method`` is of :data:`VARIANTS`."""

    def __init__(self, workload: Workload, method: str, options: Mapping[str, Any]):
        del options  # The process has its threads already.
        variant = VARIANTS[method]
        pair = pair_of(workload, variant)
        self.inputs = [np.asarray(ids) for ids in workload.inputs]
        self.versions = {name: metadata.version(name) for name in ("jax", "jaxlib")}
        self.has_fixed_lengths = _has_fixed_lengths(workload, variant)
        if workload.beam is None:
            self.decoder = decoder_of(workload, pair, variant)
            return
        guesses = variant.method == "speculative"
        self.decoder = pair.searcher(
            method="speculative_beam" if guesses else "beam", beam=workload.beam,
            gamma=workload.gamma if guesses else None, max_decode_len=workload.max_decode_len,
        )  # fmt: skip

    def decode(self, rows: Sequence[int], lengths: Sequence[int] | None) -> list[list[int]]:
        inputs = [self.inputs[row] for row in rows]
        (batch,) = make_batches(inputs, len(rows), self.decoder.target.model)
        if not isinstance(self.decoder, BatchDecoder):  # The best hypothesis of each row.
            search = cast(LoopDecoder[Any], self.decoder)
            result = search.decode(batch, limit=max(lengths) if lengths else None)
            return [search.outputs(result, index)[0].tokens.tolist() for index in range(len(rows))]
        batch = dataclasses.replace(batch, row_ids=np.asarray(rows, np.int32))
        # Rows that end by themselves need no other limit; users do not know it.
        limit = None
        if lengths is not None and (self.has_fixed_lengths or max(lengths) == 1):
            limit = max(lengths)
        result = self.decoder.decode(batch, limit=limit)
        return [
            tokens[:count].tolist()
            for tokens, count in zip(result.tokens, result.num_tokens, strict=True)
        ]
