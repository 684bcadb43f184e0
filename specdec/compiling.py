"""``specdec.compile_report``: what the compilers of TPUs and GPUs say of a decode."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from specdec.accelerators import chips
from specdec.accelerators.decodes import compile_decode
from specdec.accelerators.phases import Branch
from specdec.accelerators.programs import Place
from specdec.accelerators.report import CompileReport, ProgramReport
from specdec.checkpoints import read_config
from specdec.checkpoints.architectures import Config
from specdec.checkpoints.loading import resolve
from specdec.decoders import GREEDY, Decoders
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.beam_rules import BeamConfig
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import Checkpoint
from specdec.drafters.tree import Tree
from specdec.models.packed import PackedModel
from specdec.models.partitioning import DeviceMesh
from specdec.shapes import Decoder, shaped_decoder
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier


def compile_report(
    target: Decoders | Config | str | os.PathLike,
    draft: Config | DraftSpec | str | os.PathLike | None = None,
    *,
    chip: str = "v4",
    gamma: int | None = None,
    tree: Tree | Sequence[int] | None = None,
    batch_size: int = 1,
    max_input_len: int = 64,
    max_decode_len: int = 128,
    sampling: SamplingConfig = GREEDY,
    draft_sampling: SamplingConfig | None = None,
    verifier: Verifier | None = None,
    stop_below: float = 0.0,
    beam: BeamConfig | None = None,
    draft_beams: int | None = None,
    mesh: DeviceMesh | None = None,
    dtype: str = "bfloat16",
    int8: bool = False,
    names: tuple[str, str | None] | None = None,
    config_of: Callable[[str], Config] | None = None,
    options: dict[str, Any] | None = None,
    plain: ProgramReport | None = None,
) -> CompileReport:
    """Compiles a decode, and plain decoding, for a chip that need not be there.

    Nothing is loaded, allocated or run: shapes are enough. What comes of it is the TPU compiler's
    estimate, or of a GPU a floor and a count; neither is a measurement.

    Args:
      target: a pair of :func:`specdec.load_pair`, whose draft is taken unless another is given; a
        model's config, such as ``specdec.models.t5.config.T5Config``; or a checkpoint's directory.
      draft: a model's config or directory, or a spec such as ``specdec.Quantized()``; None compiles
        plain decoding alone.
      chip: "v4", "v5e", "v5p", "v6e", "h100" or "h200"; or a slice by Google's names: "v4-8" is
        four chips, "v5e-8" eight.
      gamma, tree, beam and all else: as in :meth:`specdec.Pair.generate`; with a beam and a gamma,
        speculative beams.
      mesh: over the slice's chips; None for one of them.
      dtype: of weights, activations and cache.
      int8: whether the target's weights have 8 bits.
      names: of target and draft in the report.
      config_of: the config of a model that a spec names; its directory's unless given.
      options: the compiler's; those that decodes are compiled with unless given.
      plain: plain decoding of this target, compiled before: another draft's report has it.

    Raises:
      ValueError: an unknown chip; wheels that are missing or of another JAX; a draft without shape;
        a mesh of more devices than the slice has; see also :meth:`specdec.Pair.decoder`.
      DoesNotFitError: a program needs more memory than the chip has.
    """
    place = Place(chips.find(chip), mesh)
    if isinstance(target, Decoders):
        target, draft, names = _of_pair(target, draft, names)
    called = names or (_name(target, "target"), None if draft is None else _name(draft, "draft"))
    config_of = config_of or _directory
    if isinstance(target, str | os.PathLike):
        target = config_of(resolve(target, "target"))
    if isinstance(draft, str | os.PathLike):
        draft = Checkpoint(os.fspath(draft))
    target_config, drafted = (_config(each, dtype) for each in (target, draft))
    shape = Tree(tuple(tree)) if isinstance(tree, Sequence) else tree
    speculates = drafted is not None and bool(gamma or shape)
    depth = (shape.levels if shape else gamma or 0) if speculates else 0
    if drafted is not None and not depth:
        raise ValueError("With a draft give gamma, or a tree.")

    def decoder(pair: Decoders, *, plain: bool) -> Decoder:
        if beam is not None:
            if plain:
                return BeamDecoder(pair.target, beam, max_decode_len)
            return pair.beam_decoder(
                beam, gamma=depth, draft_beams=draft_beams, max_decode_len=max_decode_len
            )
        return pair.decoder(
            method="autoregressive" if plain else "speculative", gamma=depth, tree=shape,
            sampling=sampling, max_decode_len=max_decode_len, seed=0, verifier=verifier,
            stop_below=0.0 if plain else stop_below, draft_sampling=draft_sampling,
        )  # fmt: skip

    cut = sampling.top_k or sampling.top_p < 1 or beam is not None
    branch: Branch = "dearest" if cut else "cheapest"

    def compiled(*, plain: bool) -> ProgramReport:
        with place.tracing():
            made = shaped_decoder(
                target_config, None if plain else drafted, lambda pair: decoder(pair, plain=plain),
                partitionings=(place.target, place.draft), int8=int8,
                config_of=lambda source: _config(config_of(source), dtype),
            )  # fmt: skip
        program = compile_decode(
            place, made, batch_size=batch_size, input_len=max_input_len, options=options
        )
        return ProgramReport.of(program, place.where.chip, 0 if plain else depth, branch)

    return CompileReport(
        place.where, called[0], called[1], depth, None if shape is None else str(shape),
        max_decode_len, plain or compiled(plain=True), compiled(plain=False) if depth else None,
    )  # fmt: skip


def _of_pair(
    pair: Decoders, draft: Any, names: tuple[str, str | None] | None
) -> tuple[Config, Any, tuple[str, str | None]]:
    """The shapes of a pair that was loaded, for whatever device."""
    assert isinstance(pair.target.model, PackedModel)
    own, source = pair.draft.model, None if draft is None else _name(draft, "draft")
    if draft is None and pair.draft.weights != ():
        if own is None or pair.draft.weights is not own.params:
            raise ValueError(
                "The pair's draft is more than a model: give compile_report its spec as well, as "
                "load_pair was given it."
            )
        assert isinstance(own.model, PackedModel)
        draft, source = own.model.config, own.source
    return pair.target.model.config, draft, names or (pair.target.source, source)


def _config(source: Any, dtype: str) -> Any:
    """A model's config in this dtype; a spec, or None, as it is."""
    if source is None or isinstance(source, DraftSpec):
        return source
    return dataclasses.replace(source, dtype=dtype)


def _directory(source: str) -> Config:
    return read_config(resolve(source, "draft"))


def _name(source: Any, role: str) -> str:
    if isinstance(source, str | os.PathLike | DraftSpec):
        return str(source)
    return role
