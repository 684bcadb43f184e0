"""What a decoding run writes of each row: its output, its counts, and how it compares with plain
decoding."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from specdec.api import Pair
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamResult
from specdec.decoding.build import open_rules
from specdec.decoding.options import Decoding
from specdec.decoding.speculative_beam import (
    SpeculativeBeamDecoder,
    SpeculativeBeamResult,
    searched_blocks,
)
from specdec.measure import lossless
from specdec.measure.kept_rows import Row
from specdec.rules.base import Rules
from specdec.runs.decode_run import DecodeRun
from specdec.runs.inputs import Item
from specdec.types import DecodeResult

Members = tuple[Batch, list[Item]]  # A batch and its rows, which come first in it.


def decoded_rows(run: DecodeRun, pair: Pair, batches: Iterator[Members]) -> Iterator[list[Row]]:
    """Decodes batches and yields the rows of each, in their order; it reads batches ahead."""
    decoder, references = _decoders(run, pair)
    make: Callable[..., Row] = functools.partial(
        _row, pair, run.decoding, open_rules(pair.target, run.decoding)
    )
    if run.decoding.searches:
        make = functools.partial(_searched_row, pair, run.decoding)
    for (batch, members), result, found in _by_all(batches, decoder, references):
        yield [make(batch, index, item, result, found) for index, item in enumerate(members)]


def _decoders(run: DecodeRun, pair: Pair) -> tuple[LoopDecoder[Any], dict[str, LoopDecoder[Any]]]:
    """What decodes, and what its outputs are compared with in a checked run."""
    if not run.decoding.searches:
        decoder = run.decoder(pair)
        widths = {"mismatch": 1, "width_matched_mismatch": decoder.engine.nodes + 1}
        return decoder, {
            name: run.decoder(pair, plain=True, width=width)
            for name, width in widths.items()
            if run.checked
        }
    searcher = run.searcher(pair)
    if not (isinstance(searcher, SpeculativeBeamDecoder) and run.checked):
        return searcher, {}
    wide = dataclasses.replace(searcher, draft=None, width=searcher.engine.nodes)
    return searcher, {"mismatch": run.searcher(pair, plain=True), "width_matched_mismatch": wide}


def _by_all(
    batches: Iterator[Members], decoder: LoopDecoder[Any],
    references: Mapping[str, LoopDecoder[Any]],
) -> Iterator[tuple[Members, Any, dict[str, Any]]]:  # fmt: skip
    """Each batch with what a decoder and its references make of it."""
    mine, own, *others = itertools.tee(batches, 2 + len(references))
    traced = decoder.decode_all((batch for batch, _ in own), trace=True)
    plain = [
        each.decode_all(batch for batch, _ in some)
        for each, some in zip(references.values(), others, strict=True)
    ]
    for members, (_, result), *found in zip(mine, traced, *plain, strict=True):
        results = (each for _, each in found)
        yield members, result, dict(zip(references, results, strict=True))


def _row(
    pair: Pair, decoding: Decoding, rules: Rules, batch: Batch, index: int, item: Item,
    result: DecodeResult, references: Mapping[str, DecodeResult],
) -> Row:  # fmt: skip
    given = {"input": item.example.input, "reference": item.example.reference}
    row = Row.of(result, index, id=item.id, **given)
    output = pair.text(np.asarray(row.tokens), batch, index, decoding.stop)
    found = {
        name: lossless.compare(
            pair.target,
            batch.row(index),
            row.tokens,
            reference.tokens[index, : reference.num_tokens[index]].tolist(),
            rules,
            decoding.max_decode_len,
        )
        for name, reference in references.items()
    }
    return dataclasses.replace(row, output=output, **found)


def _searched_row(
    pair: Pair, decoding: Decoding, batch: Batch, index: int, item: Item,
    result: BeamResult | SpeculativeBeamResult,
    references: Mapping[str, BeamResult | SpeculativeBeamResult],
) -> Row:  # fmt: skip
    beam, searched = decoding.beam, None
    assert beam is not None
    if isinstance(result, SpeculativeBeamResult):
        assert result.trace is not None
        searched = searched_blocks(result.trace, index, beam.num_beams)
    beams = result.row(index, beam.num_beams)
    row = Row.of_beams(
        pair.with_text(beams[: decoding.num_return], batch, index), result.stats, index,
        id=item.id, input=item.example.input, reference=item.example.reference, searched=searched,
    )  # fmt: skip
    found = {
        name: lossless.compare_beams(beams, reference.row(index, beam.num_beams))
        for name, reference in references.items()
    }
    return dataclasses.replace(row, **found)
