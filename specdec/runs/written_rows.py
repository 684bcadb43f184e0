"""Written rows of a decoding run: output, counts, and the comparison with plain decoding."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from specdec.api import Pair
from specdec.decoding.batch_decoder import LoopDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.build import open_rules
from specdec.measure import lossless
from specdec.measure.kept_rows import Row
from specdec.runs.decode_run import DecodeRun
from specdec.runs.inputs import Item

Members = tuple[Batch, list[Item]]  # A batch and its rows, which come first in it.


def decoded_rows(run: DecodeRun, pair: Pair, batches: Iterator[Members]) -> Iterator[list[Row]]:
    """Decodes batches and yields the rows of each, in their order; it reads batches ahead."""
    decoder, references = _decoders(run, pair)
    how, rules = run.decoding, open_rules(pair.target, run.decoding)

    def row(batch: Batch, index: int, item: Item, result: Any, found: Mapping[str, Any]) -> Row:
        outputs = decoder.outputs(result, index)
        shown = pair.texts.added(outputs[: how.num_outputs], batch, index, how.stop)
        about = {"input": item.example.input, "reference": item.example.reference}
        expected = {name: references[name].outputs(each, index) for name, each in found.items()}
        differences = {
            name: lossless.compare_beams(outputs, others)
            if how.searches
            else lossless.compare(
                pair.target, batch.row(index), outputs[0].tokens.tolist(),
                others[0].tokens.tolist(), rules, how.max_decode_len,
            )
            for name, others in expected.items()
        }  # fmt: skip
        written = Row.of(shown, result.stats, index, id=item.id, **about)
        if not how.audit:
            return dataclasses.replace(written, **differences)
        others = (each[0] for each in expected.values())
        return dataclasses.replace(
            written, **differences, margins=cast(np.ndarray, outputs[0].margins).tolist(),
            rounding=max(lossless.rounding(outputs[0], other) for other in others),
        )  # fmt: skip

    for (batch, members), result, found in _by_all(batches, decoder, references):
        yield [row(batch, index, item, result, found) for index, item in enumerate(members)]


def _decoders(run: DecodeRun, pair: Pair) -> tuple[LoopDecoder[Any], dict[str, LoopDecoder[Any]]]:
    """Decoder of a run, and those that a checked run compares its outputs with."""
    if not run.decoding.searches:
        decoder = run.decoder(pair)
        widths = {"mismatch": 1, "width_matched_mismatch": decoder.engine.nodes + 1}
        return decoder, {
            name: run.decoder(pair, plain=True, width=width)
            for name, width in widths.items()
            if run.checked
        }
    searcher = run.searcher(pair)
    if not run.checked:
        return searcher, {}
    wide = dataclasses.replace(searcher, draft=None, width=searcher.engine.nodes)
    return searcher, {"mismatch": run.searcher(pair, plain=True), "width_matched_mismatch": wide}


def _by_all(
    batches: Iterator[Members], decoder: LoopDecoder[Any],
    references: Mapping[str, LoopDecoder[Any]],
) -> Iterator[tuple[Members, Any, dict[str, Any]]]:  # fmt: skip
    """Each batch with the results of a decoder and of its references."""
    mine, own, *others = itertools.tee(batches, 2 + len(references))
    traced = decoder.decode_all((batch for batch, _ in own), trace=True)
    plain = [
        each.decode_all(batch for batch, _ in some)
        for each, some in zip(references.values(), others, strict=True)
    ]
    for members, (_, result), *found in zip(mine, traced, *plain, strict=True):
        results = (each for _, each in found)
        yield members, result, dict(zip(references, results, strict=True))
