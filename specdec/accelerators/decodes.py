"""Whole decodes and beam searches, compiled from their decoders' arrays, or from shapes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from specdec.accelerators.programs import Place, Program, compile_program
from specdec.core.randomness import seed_words
from specdec.decoding import loop
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import input_bucket
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.types import Prompt

Decoder = BatchDecoder | BeamDecoder | SpeculativeBeamDecoder


def compile_decode(
    place: Place, decoder: Decoder, *, batch_size: int = 1, input_len: int = 64,
    options: dict[str, Any] | None = None,
) -> Program:  # fmt: skip
    """The program that decodes or searches a batch, compiled for a chip or a mesh.

    Args:
      decoder: its models must be made for the place: inside of :meth:`Place.tracing`, and on a
        mesh with :attr:`Place.target` and :attr:`Place.draft`. Parameters may be shapes; those of
        a mesh say by their shardings how they lie, and what has none is whole on each chip.
      input_len: tokens of each text, which the usual bucket is made of.
      options: see :func:`specdec.accelerators.programs.compile_program`.

    Raises:
      ValueError: the mesh cannot cut the batch into equal parts.
      DoesNotFitError: see :func:`specdec.accelerators.programs.compile_program`.
    """
    decoder.target.check_batch_size(batch_size)
    prompt, row_ids = _rows(place, decoder, batch_size, input_bucket(input_len))

    whole: Any = decoder.loop

    def decode(params, prompt, row_ids, limit, seed):
        return loop.decode.function(
            whole, params, prompt, row_ids, limit, seed,
            output_bucket=decoder.output_bucket,
        )  # fmt: skip

    limit, seed = np.int32(decoder.max_decode_len), seed_words(decoder.seed)
    args = (decoder.loop_params, prompt, row_ids, limit, seed)
    return compile_program(place, decode, *args, options=options)


def _rows(place: Place, decoder: Decoder, batch_size: int, input_len: int) -> tuple[Prompt, Any]:
    """A prompt and its rows' ids, as shapes on the chips that decode them."""
    tokens = np.zeros((batch_size, input_len), np.int32)
    prompt = decoder.target.model.prompt(tokens, np.full(batch_size, input_len, np.int32))
    rows = place.target.sharding(("batch",)) if place.target else place.whole

    def shape(array: Any) -> jax.ShapeDtypeStruct:
        array = np.asarray(array)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)

    return jax.tree.map(shape, (prompt, np.arange(batch_size, dtype=np.int32)))
