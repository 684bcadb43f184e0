"""Speculative beams or plain ones: beam search for :mod:`specdec.measure.chooser`.

A search with the most levels shows how many of them calls advance. Searches of plain beams in calls
of as many tokens show v, and the difference c (:mod:`specdec.core.theory`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec.core.theory import block_speedup, levels_per_call
from specdec.core.topology import MOST_NODES
from specdec.decoding.beam_blocks import BeamEngine
from specdec.decoding.build import build_search
from specdec.decoding.options import AutoName, Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.drafters.shape import Chain, Shape
from specdec.measure.choice import Candidate, Choice
from specdec.measure.chooser import PLAIN, Decoders
from specdec.measure.timing import Timed, without_draft

GAMMAS = (1, 2, 3, 4)
_TRIED = 2
_WIDE = "plain beams in wide calls"


@dataclasses.dataclass(frozen=True)
class BeamSpace:
    """The gamma of speculative beams.

    Attributes:
      target, draft: what decodes.
      decoding: all but the gamma.
    """

    target: LoadedTarget
    draft: OpenDraft
    decoding: Decoding
    name: AutoName = dataclasses.field(default="beams", init=False)

    def decoder(self, shape: Shape | None) -> Any:
        """Searcher with this gamma; of plain beams if None."""
        return build_search(self.target, self.draft, self.decoding.with_shape(shape))

    @property
    def engine(self) -> BeamEngine:
        """An engine of speculative beams."""
        return self.decoder(Chain(1)).engine

    @property
    def _gammas(self) -> list[int]:
        beams = self.decoder(Chain(1)).draft_beams
        most = min(self.decoding.max_decode_len - 1, MOST_NODES // beams)
        return [gamma for gamma in GAMMAS if gamma <= most]

    @property
    def _probe(self) -> Candidate:
        return Candidate(Chain(self._gammas[-1]))

    def probes(self) -> Decoders:
        fast = self.decoder(self._probe.shape)
        return {PLAIN: self.decoder(None), str(self._probe): fast, _WIDE: without_draft(fast)}

    def estimate(self, found: Mapping[str, Timed]) -> Choice:
        last, plain, probe = self._gammas[-1], found[PLAIN].block, found[str(self._probe)]
        counts = sum(np.sum(each.levels, axis=0) for each in probe.results)
        shares = tuple((np.asarray(counts) / np.sum(counts)).tolist())
        verify = found[_WIDE].block / plain
        cost = max(0.0, (probe.block / plain - verify) / last)
        widest = self.decoder(self._probe.shape)
        sizes = [widest.config.num_beams, widest.engine.nodes]
        candidates = []
        for gamma in self._gammas:
            nodes = self.decoder(Chain(gamma)).engine.nodes
            v = float(np.interp(nodes, sizes, [1.0, verify]))
            tokens = levels_per_call(shares, gamma)
            speedup = block_speedup(tokens, gamma, cost, v)
            candidates.append(Candidate(Chain(gamma), tokens, speedup))
        candidates.sort(key=lambda each: -(each.predicted or 0.0))
        return Choice("beams", None, shares, cost, {last: verify}, tuple(candidates))

    def shortlist(self, estimate: Choice) -> Sequence[Candidate]:
        return estimate.candidates[:_TRIED]
