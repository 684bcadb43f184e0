"""Models and drafts as shapes: decoders for which no weight is read and no array made.

Everything is made as it is for real, inside of ``jax.eval_shape``; what comes out are shapes. One
thing shapes do not say: a draft that listens with an encoder of its target's shape is taken to have
the target's own, as Distil-Whisper and its Whisper have, which is then run once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specdec.checkpoints.architectures import Config, decode_model, parameter_shapes
from specdec.checkpoints.draft_vocabulary import load_draft_vocabulary
from specdec.checkpoints.loading import BUNDLED, as_loaded, bundled, resolve
from specdec.checkpoints.ngrams import load_ngrams
from specdec.core import platforms
from specdec.core.nested import nested
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.build import build
from specdec.decoding.options import Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import DraftSpec, MakeTree, OpenDraft
from specdec.drafters.model import model_draft
from specdec.drafters.ngram_tables import NgramTables
from specdec.drafters.shape import Shape
from specdec.models.base import LoadedModel
from specdec.models.partitioning import Partitioning
from specdec.models.transformer.model import TransformerModel
from specdec.types import Params

Decoder = BatchDecoder | BeamDecoder


def _laid_out(model: TransformerModel, params: Any) -> Any:
    """Shapes with the shardings of a model's mesh; kernels of few bits no mesh cuts."""
    laid = model.partitioning
    if laid is None or any(leaf.dtype == jnp.int8 for leaf in jax.tree.leaves(params)):
        return params
    return jax.tree.map(
        lambda leaf, axes: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=laid.sharding(axes)
        ),
        params, model.logical_axes(params),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _ShapeLoader:
    """Opens drafts of a target whose weights are only traced; see `Opening`."""

    target: LoadedModel
    config_of: Callable[[str], Config]
    partitioning: Partitioning | None

    def model(self, source: str) -> LoadedModel:
        config = self.config_of(source)
        tokens = load_draft_vocabulary(resolve(source, "draft"), config.vocab_size)
        return self.traced(config, source, tokens)

    def traced(
        self, config: Config, source: str, output_tokens: Sequence[int] | None = None
    ) -> LoadedModel:
        """A draft model of this config."""
        found = _traced(config, self.partitioning, source, output_tokens=output_tokens)
        target = self.target.model
        assert isinstance(target, TransformerModel)
        # A pair that is loaded compares weights; here equal shapes stand for them.
        if self.partitioning is None and target.config.listens_as(config):
            params = dataclasses.replace(found.params, encoder=None)
            found = dataclasses.replace(found, params=params)
        return found

    def heads(self, path: str) -> tuple[MakeTree, Params, int]:
        raise ValueError(
            f"Heads ({path}) have no shape without their target's weights: load the pair, and give "
            "it instead of its config."
        )

    def ngrams(self, path: str) -> NgramTables:
        return load_ngrams(bundled(path) if path in BUNDLED else path)[0]


def _traced(
    config: Config, partitioning: Partitioning | None, source: str, *,
    output_tokens: Sequence[int] | None = None, int8: bool = False,
) -> LoadedTarget:  # fmt: skip
    """A model whose weights are zeros, which are only traced."""
    layout = platforms.current().layout
    zeros = {
        path: jnp.zeros(shape, config.dtype) for path, shape in parameter_shapes(config).items()
    }
    pack = decode_model(config, layout).pack
    params = pack(nested(zeros), output_tokens, int8=int8)
    return as_loaded(decode_model(config, layout, partitioning), params, source)


def shaped_decoder(
    target: Config, draft: Config | DraftSpec | None, decoding: Decoding, *,
    partitionings: tuple[Partitioning | None, Partitioning | None] = (None, None),
    config_of: Callable[[str], Config] | None = None, int8: bool = False,
) -> tuple[Decoder, Any]:  # fmt: skip
    """A decoder without weights, and the parameters of its loop as shapes.

    Args:
      draft: a model's config, or a spec; None where nothing is drafted.
      partitionings: the target's and the draft's.
      config_of: the config of a draft model that a spec names.
      int8: whether the target's weights have 8 bits.

    Raises:
      ValueError: the draft has no shape without weights; see also
        :func:`specdec.decoding.build.build_decoder`.
    """
    found: Decoder | None = None
    laid, draft_laid = partitionings

    def make() -> Any:
        nonlocal found
        loaded = _traced(target, laid, "target", int8=int8)
        opened = _opened(draft, _ShapeLoader(loaded, config_of or _unknown, draft_laid))
        found = build(loaded, opened, decoding)
        return found.loop_params

    params = jax.eval_shape(make)
    assert found is not None
    assert isinstance(found.target.model, TransformerModel)
    if isinstance(found, BatchDecoder):
        laid_target = _laid_out(found.target.model, params.target)
        return found, dataclasses.replace(params, target=laid_target)
    rules, target_params, *drafted = params
    return found, (rules, _laid_out(found.target.model, target_params), *drafted)


def _opened(draft: Config | DraftSpec | None, opening: _ShapeLoader) -> OpenDraft:
    if draft is None:
        return OpenDraft(_no_draft, lambda sampling: ())
    if isinstance(draft, DraftSpec):
        return draft.open(opening)
    return model_draft(opening.traced(draft, "draft"))


def _no_draft(shape: Shape, catch_up: int) -> Any:
    raise ValueError("Speculative decoding needs a draft: none was given.")


def _unknown(source: str) -> Config:
    raise ValueError(f"The shape of {source} is not known here: give its config.")
