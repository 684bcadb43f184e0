"""gamma or a tree by measurement: what :mod:`specdec.measure.chooser` asks of decoding.

A chain is a tree with one branch. Plain decoding, the chain of three guesses and guesses that cost
nothing show alpha, c and v; for trees, eight guesses for the first position of each block show how
likely each rank is to be accepted. Of every size and depth the best tree is found
(:mod:`specdec.core.tree_shapes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specdec.core.stats import RunStats
from specdec.core.topology import Topology
from specdec.core.tree_shapes import best_parents, expected_tokens, falling
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.build import build_decoder
from specdec.decoding.engine import Engine
from specdec.decoding.options import AutoName, Decoding
from specdec.decoding.target import LoadedTarget
from specdec.drafters.base import OpenDraft
from specdec.drafters.shape import Chain, Shape, Tree
from specdec.measure.choice import Candidate, Choice
from specdec.measure.chooser import PLAIN, Decoders
from specdec.measure.timing import Timed, without_draft
from specdec.verifiers.kseq import KSeqVerifier

RANKS, PROBE_DEPTH = 8, 3
GAMMAS = (1, 2, 3, 4, 5, 6, 7, 10, 15)
NODES, DEPTHS = (2, 4, 6, 7, 8, 12, 16, 24, 32), (1, 2, 3, 4, 5, 6, 8)
CHAINS = (2, 3, 4, 8)  # Side by side, of a draft that makes no other trees.
BEST_FIRST = ((8, 4, 3), (16, 5, 4))  # Nodes, depth and siblings.
FREE = (7, 23)  # Guesses of the blocks without a draft that are timed; v is linear between them.
_TREE_PROBE = "acceptance by rank"
_CHAINS, _TREES, _BEST_FIRST = 2, 2, 1  # Of each kind, those that are timed.


@dataclasses.dataclass(frozen=True)
class DecodeSpace:
    """A gamma, or a tree, a chain, or plain decoding.

    Attributes:
      target, draft: what decodes. What the draft can make is what is tried.
      decoding: all but what is to be chosen.
    """

    target: LoadedTarget
    draft: OpenDraft
    decoding: Decoding

    @property
    def name(self) -> AutoName:
        return "tree" if self.decoding.to_choose == "tree" else "gamma"

    @property
    def _independent(self) -> bool:
        """Whether siblings have to be drawn with replacement, as K-SEQ's test needs them.

        At temperature 0 nothing is drawn.
        """
        drawn = self.decoding.sampling.temperature > 0
        return drawn and isinstance(self.decoding.verifier, KSeqVerifier)

    @property
    def _most(self) -> int:
        """Guesses in a row."""
        return min(self.decoding.max_decode_len - 1, self.draft.most_guesses)

    @property
    def _probe(self) -> Candidate:
        return self._chain(min(PROBE_DEPTH, self._most))

    @property
    def _ranks(self) -> int:
        tokens = self.draft.model.most_tokens if self.draft.model else None
        return min(RANKS, tokens or RANKS, self.target.model.vocab_size)

    def _chain(self, gamma: int) -> Candidate:
        if not self.draft.chain:
            return Candidate(Tree((1,) * gamma))
        return Candidate(Chain(gamma, self.decoding.stop_below))

    def _tree(self, parents: Sequence[int]) -> Candidate:
        return Candidate(Tree(parents=parents, independent=self._independent))

    def decoder(self, shape: Shape | None) -> BatchDecoder:
        """Decoder with this shape of a block; of plain decoding if None."""
        return build_decoder(self.target, self.draft, self.decoding.with_shape(shape))

    @property
    def engine(self) -> Engine:
        """An engine with one guess, made of a draft that can make such.

        Raises:
          ValueError: the draft makes no chains or no trees, or the verifier verifies chains only.
        """
        chain = Chain(1, self.decoding.stop_below)
        engine = self.decoder(chain if self.name == "gamma" else Tree((1,))).engine
        if self.name == "tree" and not engine.verifier.trees:
            raise ValueError(
                f"{type(engine.verifier).__name__} verifies chains only: give "
                'gamma="auto" instead of tree="auto", or verifier=specdec.RecursiveVerifier().'
            )
        return engine

    def probes(self) -> Decoders:
        probe = self._probe
        fast = self.decoder(probe.shape)
        found = {PLAIN: self.decoder(None), str(probe): fast}
        # A call's cost hardly depends on the shape of its guesses.
        found[_free(FREE[0])] = without_draft(fast, Topology.chain(FREE[0]))
        if self.name == "tree":
            shape = (self._ranks, *[1] * (probe.shape.levels - 1))
            found[_TREE_PROBE] = self.decoder(Tree(shape, independent=self._independent))
            found[_free(FREE[1])] = without_draft(fast, Topology.chain(FREE[1]))
        return found

    def estimate(self, found: Mapping[str, Timed]) -> Choice:
        probe, plain = self._probe, found[PLAIN]
        fast, depth = found[str(probe)], probe.shape.levels
        verify = {
            size: found[_free(size)].block / plain.block for size in FREE if _free(size) in found
        }
        cost = max(0.0, (fast.block / plain.block - _at(verify, self._nodes(probe))) / depth)
        levels, accepted = {1: cost}, (fast.stats(depth).alpha or 0.0,)
        if self.name == "tree" and _TREE_PROBE in found:
            wide = found[_TREE_PROBE]
            accepted = acceptance_by_rank(wide.stats(depth))
            many = wide.block / plain.block - _at(verify, self._share * self._ranks * depth)
            if depth > 1:
                levels[self._ranks] = max(cost, (many - cost) / (depth - 1))
        candidates = sorted(
            self._predicted(accepted, verify, levels), key=lambda each: -(each.predicted or 0.0)
        )
        every = (*candidates, *self._best_first())
        return Choice(self.name, None, accepted, cost, verify, every)

    def shortlist(self, estimate: Choice) -> Sequence[Candidate]:
        probe = str(self._probe)
        chains = [each for each in estimate.candidates if _is_chain(each)]
        best = [*chains[:_CHAINS], *(each for each in chains[_CHAINS:] if str(each) == probe)]
        trees = [each for each in estimate.candidates if not _is_chain(each)]
        likeliest = [each for each in trees if each.predicted is None]
        fixed = [each for each in trees if each.predicted is not None]
        return [*best, *fixed[:_TREES], *likeliest[:_BEST_FIRST]]

    @property
    def _share(self) -> int:
        """Guesses for one of a tree; several where each of several drafts grows it."""
        return self._nodes(self._probe) // self._probe.shape.levels

    def _nodes(self, candidate: Candidate) -> int:
        return self.decoder(candidate.shape).engine.nodes

    def _predicted(
        self, accepted: Sequence[float], verify: Mapping[int, float], levels: Mapping[int, float]
    ) -> list[Candidate]:
        """tokens / (v(guesses) + the draft's levels), over plain decoding, without encoders."""
        shapes = {
            tuple(range(-1, gamma - 1)): self._chain(gamma)
            for gamma in GAMMAS if gamma <= self._most
        }  # fmt: skip
        if self.name == "tree":
            for parents in self._shapes(accepted):
                shapes.setdefault(parents, self._tree(parents))
        found = []
        for parents, candidate in shapes.items():
            depths = Topology(parents).depths()
            # The first level is fed one token, each other one the nodes above with children.
            fed = [1] + [
                len({parents[i] for i in np.flatnonzero(depths == depth)})
                for depth in range(1, candidate.shape.levels)
            ]
            time = _at(verify, self._share * len(parents)) + sum(_line(levels, m) for m in fed)
            tokens = expected_tokens(accepted, parents)
            found.append(dataclasses.replace(candidate, tokens=tokens, predicted=tokens / time))
        return found

    def _shapes(self, accepted: Sequence[float]) -> Iterator[tuple[int, ...]]:
        """Parents of the trees that the draft can grow."""
        for depth in DEPTHS:
            if depth > self._most:
                continue
            if self.draft.trees == "chains":
                for count in CHAINS:
                    if count <= self._ranks:
                        yield Topology.branching((count, *[1] * (depth - 1))).parents
                continue
            for nodes in NODES:
                if nodes >= depth:
                    yield best_parents(accepted, nodes, depth)

    def _best_first(self) -> list[Candidate]:
        """Trees that find their shape while decoding."""
        if self.name != "tree" or self.draft.trees != "best-first" or self._independent:
            return []
        return [
            Candidate(Tree(nodes=nodes, depth=depth, siblings=siblings))
            for nodes, depth, siblings in BEST_FIRST
            if depth <= self._most and siblings <= self._ranks
        ]


def _free(size: int) -> str:
    return f"{size} guesses that cost nothing"


def _is_chain(candidate: Candidate) -> bool:
    shape = candidate.shape
    return isinstance(shape, Chain) or bool(shape.topology and shape.topology.is_chain)


def _at(verify: Mapping[int, float], size: int) -> float:
    """v of a call on some guesses: on straight lines from 1, which is v of none."""
    return _line({0: 1.0, **verify}, size)


def _line(table: Mapping[int, float], size: int) -> float:
    sizes = sorted(table)
    values = [table[each] for each in sizes]
    if size > sizes[-1] and len(sizes) > 1:  # On as from the last but one.
        slope = max(0.0, (values[-1] - values[-2]) / (sizes[-1] - sizes[-2]))
        return values[-1] + slope * (size - sizes[-1])
    return float(np.interp(size, sizes, values))


def acceptance_by_rank(stats: RunStats) -> tuple[float, ...]:
    """p_k of a decode in which only the first position of a block has several guesses."""
    counts = np.array(stats.accepted_by_rank, float)
    rates = counts / max(stats.target_calls, 1)
    # The first rank is tried at each level.
    rates[0] = counts[0] / max(stats.examined, 1)
    return falling(np.minimum(rates, 1 - np.concatenate([[0], np.cumsum(rates)[:-1]])).clip(0))
