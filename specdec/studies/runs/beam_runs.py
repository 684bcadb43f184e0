"""Speculative beams beside plain ones: calls, differences, time here and computed, BLEU."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.checkpoints.architectures import Config
from specdec.checkpoints.loading import resolve
from specdec.core.machine import device_name
from specdec.core.roofline import Hardware
from specdec.core.theory_beams import beam_speedup
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batches import Batch, bucket, commonest, make_batches
from specdec.decoding.beam import BeamDecoder, BeamResult
from specdec.decoding.beam_rules import BeamConfig
from specdec.decoding.options import Decoding
from specdec.decoding.speculative_beam import BeamCounts, SpeculativeBeamDecoder
from specdec.load import load_pair
from specdec.measure.beam_choice import measure_costs
from specdec.measure.beam_floors import BeamFloors
from specdec.measure.quality import Quality
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.runs.dry_run import find_config
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept

NEAR = 1e-4  # Scores closer than this are a near tie.
QUALITY_WIDTH = 4
RESULT, COUNTS = "beams.json", "counts"
_TIMED, _REPETITIONS, _BATCH = 16, 7, 16
_SHAPE_OF_PLANS = 64, 64  # Inputs and outputs of computed times, tokens.


@dataclasses.dataclass(frozen=True)
class BeamRuns:
    """Speculative beams of several widths and gammas against plain ones, by T5X's rule.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs with references, once; ``num_examples`` of them, evenly spread, are
        searched, and all of them for BLEU.
      widths, gammas: a piece for each pair of them.
      hardware: devices whose times are computed.
      planned: targets and drafts whose times are computed beside the pair's own, as if their calls
        advanced as many levels; public checkpoints whose shapes are in ``configs/shapes``, in
        bfloat16.
      All else: see :meth:`specdec.Pair.generate`.
    """

    name: str
    task: Callable[[], Task]
    target: str
    draft: str
    num_examples: int
    max_decode_len: int
    widths: Sequence[int]
    gammas: Sequence[int]
    hardware: Sequence[Hardware]
    planned: Sequence[tuple[str, str]] = ()

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        piece, where = _Piece(self), (slug(self.name), "beams")
        for width in self.widths:
            for gamma in self.gammas:
                index = (*where, f"w{width}", f"gamma{gamma}")
                yield (
                    (*index, COUNTS),
                    lambda path, w=width, g=gamma: piece.kept(path, lambda: piece.compare(w, g)),
                )
                yield (
                    (*index, "time"),
                    lambda path, w=width, g=gamma: piece.kept(
                        path, lambda: piece.time(w, g, path.parent / COUNTS)
                    ),
                )
            yield (
                (*where, f"w{width}", "auto"),
                lambda path, w=width: piece.kept(path, lambda: piece.auto(w)),
            )
        yield (*where, "quality"), lambda path: piece.kept(path, piece.quality)


@dataclasses.dataclass
class _Piece:
    runs: BeamRuns

    def __post_init__(self):
        self.plain = functools.lru_cache(maxsize=1)(self._plain)

    def kept(self, path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is on disk of the same weights and settings, or made now."""
        names = ("num_examples", "max_decode_len")
        settings = {name: getattr(self.runs, name) for name in names}
        return kept(path / RESULT, self.pair, settings, make)

    @functools.cached_property
    def pair(self):
        """Loaded once."""
        return load_pair(target=self.runs.target, draft=self.runs.draft)

    @functools.cached_property
    def task(self) -> Task:
        """Opened once."""
        return self.runs.task()

    def _ids(self, count: int) -> list[np.ndarray]:
        given = model_inputs(evenly(self.task.examples, count), self.pair.vocabulary)
        return self.pair.token_ids(given, max_input_len=512)

    @functools.cached_property
    def batches(self) -> list[Batch]:
        """One row each."""
        return list(make_batches(self._ids(self.runs.num_examples), 1, self.pair.target.model))

    def _searcher(self, width: int) -> BeamDecoder:
        return BeamDecoder(self.pair.target, BeamConfig(width), self.runs.max_decode_len)

    def _plain(self, width: int) -> list[BeamResult]:
        return [self._searcher(width).decode(batch) for batch in self.batches]

    def _fast(self, width: int, gamma: int) -> SpeculativeBeamDecoder:
        fast = self.pair.searcher(self._decoding(width), gamma=gamma)
        assert isinstance(fast, SpeculativeBeamDecoder)
        return fast

    def _decoding(self, width: int) -> Decoding:
        return Decoding(
            "speculative_beam", gamma="auto", beam=BeamConfig(width),
            max_decode_len=self.runs.max_decode_len,
        )  # fmt: skip

    def compare(self, width: int, gamma: int) -> dict[str, Any]:
        """Calls, levels, misses and differences, and the time computed for devices."""
        fast, plain = self._fast(width, gamma), self.plain(width)
        matched = dataclasses.replace(fast, draft=None, width=fast.engine.nodes)
        found = [fast.decode(batch) for batch in self.batches]
        references = [matched.decode(batch).beams for batch in self.batches]
        counts = BeamCounts.total(each.counts for each in found)
        calls = sum(int(each.steps.sum()) for each in plain)
        beams = [each.beams for each in found]
        levels = calls / counts.target_calls
        return {
            "draft_beams": fast.draft_beams, "tokens_a_call": fast.engine.nodes,
            "num_rows": len(found), "plain_calls": calls, "calls": counts.target_calls,
            "calls_saved": levels, "levels": counts.levels, "ends": counts.ends,
            "against_plain": differences(beams, plain),
            "against_width_matched": differences(beams, references),
            "computed": list(self._computed(fast, levels)),
        }  # fmt: skip

    def time(self, width: int, gamma: int, counted: Path) -> dict[str, Any]:
        """Whole decodes, interleaved, and what v and c predict of them.

        Args:
          counted: where the result of :meth:`compare` is kept, or will be.
        """
        levels = self.kept(counted, lambda: self.compare(width, gamma))["calls_saved"]
        fast = self._fast(width, gamma)
        plain, batches = self._searcher(width), commonest(self.batches)[:_TIMED]
        # Plain beams in the speculative ones' layout, which moves no caches.
        beside = dataclasses.replace(fast, draft=None)
        decoders = {"plain": plain, "speculative": fast, "side_by_side": beside}
        works = [
            Work(name, lambda each=each, batch=batch: each.decode(batch), batch.shape)
            for batch in batches
            for name, each in decoders.items()
        ]
        times = time_interleaved(works, _REPETITIONS)
        verify, c = measure_costs(plain, fast, batches[0])
        speedups = {
            name: dataclasses.asdict(Spread.of(t["plain"] / t[name] for t in times))
            for name in ("speculative", "side_by_side")
        }
        return {
            "speedup": speedups["speculative"], "side_by_side": speedups["side_by_side"],
            "verify_ratio": verify, "cost_ratio": c,
            "predicted": beam_speedup(levels, gamma, c, verify),
            "num_rows": len(batches), "device": device_name(),
        }  # fmt: skip

    def _computed(self, fast: SpeculativeBeamDecoder, levels: float) -> Iterator[dict[str, Any]]:
        """Floors on each device, of the pair and of the planned ones, in bfloat16."""
        own = resolve(self.runs.target, "target"), resolve(self.runs.draft, "draft")
        for names in ((self.runs.target, self.runs.draft), *self.runs.planned):
            sources = own if names[0] == self.runs.target else names
            target, draft = (_bfloat16(find_config(source, Path())[0]) for source in sources)
            floors = BeamFloors(
                target, draft, fast.config.num_beams, fast.draft_beams, fast.gamma,
                *map(bucket, _SHAPE_OF_PLANS),
            )  # fmt: skip
            for hardware in self.runs.hardware:
                about = {"target": names[0], "draft": names[1], "hardware": hardware.name}
                yield about | floors.computed(hardware, levels)

    def auto(self, width: int) -> dict[str, Any]:
        """What "auto" chooses, on rows of the study."""
        ids = self._ids(_TIMED)
        choice = self.pair.choose(ids, self._decoding(width), remember=False)
        return {"said": str(choice), **dataclasses.asdict(choice), "device": device_name()}

    def quality(self) -> dict[str, Any]:
        """BLEU and chrF of greedy decoding and of plain beams, all rows."""
        examples, model = self.task.examples, self.pair.target.model
        ids = self._ids(len(examples))
        greedy = self.pair.decoder(method="autoregressive", max_decode_len=self.runs.max_decode_len)
        searcher, scored = self._searcher(QUALITY_WIDTH), {"greedy": Quality(), "beams": Quality()}
        for batch in make_batches(ids, _BATCH, model):
            one, best = greedy.decode(batch), searcher.decode(batch)
            outputs: Mapping[str, Any] = {
                "greedy": (one.tokens, one.num_tokens),
                "beams": (best.tokens[:, 0], best.num_tokens[:, 0]),
            }
            for name, (tokens, lengths) in outputs.items():
                for index, row in enumerate(batch.row_ids):
                    if row >= 0:
                        text = self.pair.texts.of(tokens[index, : lengths[index]], batch, index)
                        assert text is not None
                        scored[name].add(text, str(examples[row].reference))
        return {
            "num_rows": len(examples), "num_beams": QUALITY_WIDTH,
            **{name: each.scores() for name, each in scored.items()},
        }  # fmt: skip


def differences(found: Sequence[BeamResult], expected: Sequence[BeamResult]) -> dict[str, Any]:
    """Rows whose n-best lists differ in tokens or order, and the gaps of their scores.

    A gap is the largest difference between scores of the same rank. In a near tie it is small:
    two hypotheses of about the same score were swapped, or one replaced the other.
    """
    rows, gaps, largest = 0, [], 0.0
    for mine, its in zip(found, expected, strict=True):
        for index in range(len(mine.tokens)):
            there = np.isfinite(its.scores[index]) & np.isfinite(mine.scores[index])
            off = np.abs(mine.scores[index] - its.scores[index])[there]
            gap = float(off.max(initial=0.0))
            rows += 1
            if np.array_equal(mine.tokens[index], its.tokens[index]):
                largest = max(largest, gap)
            else:
                gaps.append(gap)
    return {
        "rows": rows, "differ": len(gaps), "near_ties": sum(gap < NEAR for gap in gaps),
        "gaps": gaps, "largest_difference_of_equal_lists": largest,
    }  # fmt: skip


def _bfloat16(config: Config) -> Config:
    return dataclasses.replace(config, dtype="bfloat16")
