"""``specdec.compile_report``: what the compilers of TPUs and GPUs say about a decode."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from specdec.api import Pair
from specdec.checkpoints import read_config
from specdec.checkpoints.architectures import Config
from specdec.checkpoints.loading import resolve
from specdec.compile import chips
from specdec.compile.phases import Branch
from specdec.compile.programs import Place, Program, compile_program
from specdec.compile.report import CompileReport, ProgramReport
from specdec.compile.shapes import Decoder, shaped_decoder
from specdec.core.randomness import seed_words
from specdec.decoding import loop
from specdec.decoding.batches import input_bucket
from specdec.decoding.options import Decoding, decoding_of
from specdec.drafters.base import DraftSpec
from specdec.drafters.model import Checkpoint
from specdec.models.partitioning import DeviceMesh
from specdec.models.transformer.model import TransformerModel


def compile_report(
    target: Pair | Config | str | os.PathLike,
    draft: Config | DraftSpec | str | os.PathLike | None = None,
    decoding: Decoding | None = None,
    *,
    chip: str = "v4",
    mesh: DeviceMesh | None = None,
    dtype: str = "bfloat16",
    int8: bool = False,
    names: tuple[str, str | None] | None = None,
    config_of: Callable[[str], Config] | None = None,
    plain: ProgramReport | None = None,
    **options: Any,
) -> CompileReport:
    """Compiles a decode, and plain decoding, for a chip that this machine need not have.

    Nothing is loaded, allocated or run: shapes are enough. The result is an estimate of the TPU
    compiler, or for a GPU a floor and a count. Neither is a measurement.

    Args:
      target: a pair of :func:`specdec.load_pair`, with its own draft unless another is given; a
        model's config, such as ``specdec.models.t5.config.T5Config``; or a checkpoint's directory.
      draft: a model's config or directory, or a spec such as ``specdec.Quantized()``; None compiles
        plain decoding alone.
      decoding: how to decode; the defaults of :class:`specdec.Decoding` if None.
      chip: "v4", "v5e", "v5p", "v6e", "h100" or "h200"; or a slice by Google's names: "v4-8" is
        four chips, "v5e-8" eight, "v5e-16" sixteen on four hosts.
      mesh: over the slice's chips, all of them if it has several hosts; None for one of them.
      dtype: of weights, activations and cache.
      int8: whether the target's weights have 8 bits.
      names: of target and draft in the report.
      config_of: the config of a model that a spec names; its directory's unless given.
      plain: plain decoding of this target, compiled before: another draft's report has it.
      options: fields of :class:`specdec.Decoding`, which replace those of ``decoding``.

    Raises:
      ValueError: an unknown chip; gamma or a tree that is "auto"; wheels that are missing or of
        another JAX; a draft without shape; a mesh that the slice cannot hold (see
        :class:`specdec.compile.programs.Place`); see also :meth:`specdec.Pair.decoder`.
      DoesNotFitError: a program needs more memory than the chip has.
    """
    place = Place(chips.find(chip), mesh)
    if isinstance(target, Pair):
        target, draft, names = _of_pair(target, draft, names)
    called = names or (_name(target, "target"), None if draft is None else _name(draft, "draft"))
    config_of = config_of or _directory
    if isinstance(target, str | os.PathLike):
        target = config_of(resolve(target, "target"))
    if isinstance(draft, str | os.PathLike):
        draft = Checkpoint(os.fspath(draft))
    target_config, drafted = (_config(each, dtype) for each in (target, draft))
    how = decoding_of(decoding, options)
    if how.to_choose:
        raise ValueError('compile_report compiles one program: give a gamma or a tree, not "auto".')
    if drafted is None:
        how = how.with_shape(None)
    cut = how.sampling.top_k or how.sampling.top_p < 1 or how.searches
    branch: Branch = "dearest" if cut else "cheapest"

    def compiled(drafted: Any, how: Decoding) -> ProgramReport:
        with place.tracing():
            decoder, params = shaped_decoder(
                target_config, drafted, how, partitionings=(place.target, place.draft), int8=int8,
                config_of=lambda source: _config(config_of(source), dtype),
            )  # fmt: skip
        sizes = {"batch_size": how.batch_size, "input_len": how.max_input_len}
        program = compile_decode(place, decoder, params, **sizes)
        return ProgramReport.of(program, place.where.chip, how.depth, branch)

    return CompileReport(
        place.where, called[0], called[1], how.depth, str(how.tree) if how.tree else None,
        how.max_decode_len, plain or compiled(None, how.with_shape(None)),
        compiled(drafted, how) if how.guesses else None,
    )  # fmt: skip


def _of_pair(
    pair: Pair, draft: Any, names: tuple[str, str | None] | None
) -> tuple[Config, Any, tuple[str, str | None]]:
    """The shapes of a pair that was loaded, for whatever device."""
    assert isinstance(pair.target.model, TransformerModel)
    own, source = pair.draft.model, None if draft is None else _name(draft, "draft")
    if draft is None and pair.draft.weights != ():
        if own is None or pair.draft.weights is not own.params:
            raise ValueError(
                "The pair's draft is more than a model: give compile_report its spec as well, as "
                "load_pair was given it."
            )
        assert isinstance(own.model, TransformerModel)
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


def compile_decode(
    place: Place, decoder: Decoder, params: Any, *, batch_size: int = 1, input_len: int = 64
) -> Program:
    """The program that decodes or searches a batch, compiled for a chip or a mesh.

    Args:
      decoder: its models must be made for the place: inside of :meth:`Place.tracing`, and on a
        mesh with :attr:`Place.target` and :attr:`Place.draft`.
      params: of its loop, as shapes. Those of a mesh say by their shardings how they lie, and what
        has none is whole on each chip.
      input_len: tokens of each text, which the usual bucket is made of. A model that listens gets
        whole windows of features in any case.

    Raises:
      ValueError: the mesh cannot cut the batch into equal parts.
      DoesNotFitError: see :func:`specdec.compile.programs.compile_program`.
    """
    decoder.target.check_batch_size(batch_size)
    model = decoder.target.model
    size, dtype = (input_bucket(input_len),), np.int32
    if model.input_shape is not None:
        size, dtype = model.input_shape, np.float32
    lengths = np.full(batch_size, size[0], np.int32)
    prompt = model.prompt(np.zeros((batch_size, *size), dtype), lengths)
    rows = place.target.sharding(("batch",)) if place.target else place.whole

    def shape(array: Any) -> jax.ShapeDtypeStruct:
        array = np.asarray(array)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)

    given = jax.tree.map(shape, (prompt, np.arange(batch_size, dtype=np.int32)))
    whole: Any = decoder.loop
    decode = functools.partial(loop.decode.function, whole, output_bucket=decoder.output_bucket)
    limit, seed = np.int32(decoder.max_decode_len), seed_words(decoder.seed)
    return compile_program(place, decode, params, *given, limit, seed)
