"""Speculative beams or plain ones: beam search for :mod:`specdec.measure.chooser`.

A search with the most levels shows how many of them calls advance. Searches of plain beams in calls
of as many tokens show v, and the difference c (:mod:`specdec.core.theory`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from specdec.core.theory import block_speedup, levels_per_call
from specdec.core.topology import MOST_NODES
from specdec.decoding.batches import Batch
from specdec.decoding.beam import BeamDecoder
from specdec.decoding.options import AutoName
from specdec.decoding.speculative_beam import SpeculativeBeamDecoder
from specdec.drafters.shape import Chain
from specdec.measure.choice import Candidate
from specdec.measure.chooser import PLAIN, Estimate, Runner, Timed, time_in_turns

GAMMAS = (1, 2, 3, 4)
_TRIED, _REPETITIONS = 2, 7
_WIDE = "plain beams in wide calls"


@dataclasses.dataclass(frozen=True)
class BeamSpace:
    """The gamma of speculative beams.

    Attributes:
      plain: plain beams.
      fast: speculative beams of any gamma.
      longest: the most guesses in a row that fit into an output.
    """

    plain: BeamDecoder
    fast: SpeculativeBeamDecoder
    longest: int
    name: AutoName = dataclasses.field(default="beams", init=False)

    @property
    def _gammas(self) -> list[int]:
        most = min(self.longest, MOST_NODES // self.fast.draft_beams)
        return [gamma for gamma in GAMMAS if gamma <= most]

    def _fast(self, gamma: int) -> SpeculativeBeamDecoder:
        return dataclasses.replace(self.fast, gamma=gamma)

    def runner(self, candidate: Candidate) -> Runner:
        return _runner(self._fast(candidate.shape.levels))

    def probes(self) -> Mapping[str, Runner]:
        gamma = self._gammas[-1]
        return _runners(self.plain, self._fast(gamma), str(Candidate(Chain(gamma))))

    def estimate(self, found: Mapping[str, Timed]) -> Estimate:
        last = self._gammas[-1]
        probe = found[str(Candidate(Chain(last)))]
        counts = sum(np.sum(each.counts.levels, axis=0) for each in probe.results)
        shares = tuple((np.asarray(counts) / np.sum(counts)).tolist())
        note = ""
        if _WIDE in found:
            verify, cost = _costs(found, probe, last)
        else:
            verify, cost = probe.block / found[PLAIN].block, 0.0
            note = "v includes the draft."
        kept = self.fast.config.num_beams
        sizes = [kept, self._fast(last).engine.nodes]
        candidates = []
        for gamma in self._gammas:
            v = float(np.interp(self._fast(gamma).engine.nodes, sizes, [1.0, verify]))
            tokens = levels_per_call(shares, gamma)
            speedup = block_speedup(tokens, gamma, cost, v)
            candidates.append(Candidate(Chain(gamma), tokens, speedup))
        candidates.sort(key=lambda each: -(each.predicted or 0.0))
        return Estimate(shares, cost, {last: verify}, candidates, note)

    def assumed(self) -> Estimate:
        candidates = [Candidate(Chain(gamma)) for gamma in self._gammas]
        levels = (0.0, 1.0, *[0.0] * self._gammas[-1])
        return Estimate(levels, 0.0, {}, candidates, "plain beams are taken.")

    def shortlist(self, estimate: Estimate) -> Sequence[Candidate]:
        return estimate.candidates[:_TRIED]


def _runner(decoder: BeamDecoder | SpeculativeBeamDecoder) -> Runner:
    return Runner(decoder.lower, decoder.decode)


def _runners(plain: BeamDecoder, fast: SpeculativeBeamDecoder, name: str) -> dict[str, Runner]:
    wide = dataclasses.replace(fast, draft=None, width=fast.engine.nodes)
    return {PLAIN: _runner(plain), name: _runner(fast), _WIDE: _runner(wide)}


def _costs(found: Mapping[str, Timed], probe: Timed, gamma: int) -> tuple[float, float]:
    """v of a call of that many levels, and c; in plain calls."""
    plain = found[PLAIN].block
    verify = found[_WIDE].block / plain
    return verify, max(0.0, (probe.block / plain - verify) / gamma)


def measure_costs(
    plain: BeamDecoder, fast: SpeculativeBeamDecoder, batch: Batch
) -> tuple[float, float]:
    """v of the calls of ``fast``, and c; in plain calls."""
    found = time_in_turns(
        _runners(plain, fast, "fast"), [batch], starts=True, repetitions=_REPETITIONS
    )
    return _costs(found, found["fast"], fast.gamma)
