"""A tree, a chain or plain decoding: what is the fastest here, by measurement.

1. A probe decodes with eight guesses for the first position of each block: acceptance by rank.
2. Blocks of a few sizes are timed: what a target call costs by its number of tokens, and what a
   level of the draft does.
3. Of every size and depth the best tree is found (:mod:`specdec.core.tree_shapes`), and its
   speedup predicted; chains are trees with one branch.
4. The best few, best-first trees and plain decoding decode the probe's rows, interleaved. The
   fastest is chosen.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.core.stats import RunStats
from specdec.core.tree_shapes import best_parents, expected_tokens, falling
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.drafters.tree import Tree
from specdec.measure import costs
from specdec.measure.progress import Progress
from specdec.measure.remembered import keep, recall
from specdec.measure.timing import Work, time_interleaved

RANKS, PROBE_DEPTH = 8, 3
GAMMAS = (1, 2, 3, 4, 5, 6, 7, 10)
NODES, DEPTHS = (2, 4, 6, 7, 8, 12, 16, 24, 32), (1, 2, 3, 4, 5, 6, 8)
BEST_FIRST = ((8, 4, 3), (16, 5, 4))  # Nodes, depth and siblings.
_TIMED = (
    1,
    3,
    7,
    15,
)  # Guesses of the blocks that are timed; between them and beyond, straight lines.
_REPETITIONS, _DECODES = 7, 3  # Of timed blocks; of whole decodes of many rows.
_FILE = "trees.json"
# (gamma, tree) -> what decodes so; (0, None) is plain decoding.
Decoders = Callable[[int, Tree | None], BatchDecoder]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to decode."""

    gamma: int  # Of a chain; else 0.
    tree: Tree | None
    tokens: float | None  # A block, as predicted; None where the shape is found while decoding.
    predicted: float | None  # Speedup of the decoder over plain decoding.
    measured: float | None = None  # Of whole decodes of the probe's rows, a token.

    def __str__(self) -> str:
        return str(self.tree) if self.tree else f"gamma {self.gamma}"


@dataclasses.dataclass(frozen=True)
class TreeChoice:
    """The fastest candidate; neither gamma nor tree is plain decoding."""

    gamma: int
    tree: Tree | None
    by_rank: tuple[float, ...]  # Measured acceptance.
    verify_ratio: Mapping[int, float]  # v by the number of guesses.
    cost_ratio: float  # c of a level of one guess.
    candidates: tuple[Candidate, ...]  # The fastest first.

    def __str__(self) -> str:
        best = self.candidates[0]
        others = ", ".join(f"{each} {each.measured:.2f}" for each in self.candidates[1:])
        ranks = "/".join(f"{p:.2f}" for p in self.by_rank[:4])
        sizes = ", ".join(f"v({n}) {v:.2f}" for n, v in self.verify_ratio.items())
        measured = f"accepted by rank {ranks}, c {self.cost_ratio:.2f}, {sizes}"
        if self.gamma or self.tree:
            head = f"{best}: {best.measured:.2f} x measured here."
        else:
            head = (
                f"Speculation does not pay here: the best way, {best}, is {best.measured:.2f} "
                "times as fast as plain decoding. Decoding plainly."
            )
        return f"{head} Others: {others}. Measured: {measured}."


def choose_by_measurement(
    decoder: Decoders, batches: Sequence[Batch], *, longest: int, model: bool
) -> TreeChoice:
    """Measures on batches of one shape, and chooses.

    Args:
      longest: guesses in a row that outputs have room for.
      model: whether the draft is a model, which can find a tree's shape itself.

    Raises:
      ValueError: the draft makes no chains or no trees, or the verifier takes no trees.
    """
    depth = min(PROBE_DEPTH, longest)
    decoder(depth, None)  # A draft that makes no chains is refused at once.
    probe = decoder(0, Tree((RANKS, *[1] * (depth - 1))))
    with Progress(len(batches) + 2, "steps") as progress:
        progress.begin("Choosing a tree: decoding, for acceptance by rank")
        found = []
        for batch in batches:
            found.append(probe.decode(batch).stats)
            progress.add(kind="decode")
        num_rows = sum(int(np.sum(batch.row_ids >= 0)) for batch in batches)
        by_rank = acceptance_by_rank(RunStats.total(found, num_rows, probe.engine.depth))
        progress.begin("Choosing a tree: timing blocks of several sizes")
        verify, level = measure_costs(decoder, probe, batches[0], longest)
        progress.add()
        best = shortlist(by_rank, verify, level, longest)
        if model:
            best += [
                Candidate(0, Tree(nodes=n, depth=d, siblings=k), None, None)
                for n, d, k in BEST_FIRST
                if d <= longest
            ]
        best = [each for each in best if can_decode(decoder, each)]
        progress.begin("Choosing a tree: decoding with the best")
        candidates = measured_candidates(decoder, best, batches)
        progress.add()
    first = candidates[0]
    assert first.measured is not None
    pays = first.measured > 1
    return TreeChoice(
        first.gamma if pays else 0, first.tree if pays else None, by_rank, verify, level[1],
        candidates,
    )  # fmt: skip


def acceptance_by_rank(stats: RunStats) -> tuple[float, ...]:
    """p_k of a decode in which only the first position of a block has several guesses."""
    counts = np.array(stats.accepted_by_rank, float)
    rates = counts / max(stats.target_calls, 1)
    # The first rank is tried at each level.
    rates[0] = counts[0] / max(stats.examined, 1)
    return falling(np.minimum(rates, 1 - np.concatenate([[0], np.cumsum(rates)[:-1]])).clip(0))


def measure_costs(
    decoder: Decoders, probe: BatchDecoder, batch: Batch, longest: int
) -> tuple[dict[int, float], dict[int, float]]:
    """v by the number of guesses, and what a level adds to a block by its nodes, in plain steps."""
    plain, gamma = decoder(0, None), min(PROBE_DEPTH, longest)
    # A target call's cost depends on its tokens, and on their shape hardly at all.
    wide = {n: decoder(0, Tree((n,))) for n in _TIMED}
    loops = {"plain": costs.loop(plain, batch), "chain": costs.loop(decoder(gamma, None), batch)}
    loops |= {f"v {n}": costs.loop(costs.without_draft(each), batch) for n, each in wide.items()}
    loops |= {"free chain": costs.loop(costs.without_draft(decoder(gamma, None)), batch)}
    loops |= {"tree": costs.loop(probe, batch)}
    loops |= {"free tree": costs.loop(costs.without_draft(probe), batch)}
    times = time_interleaved(costs.works_of(loops), _REPETITIONS)

    def ratio(name: str, less: str | None = None) -> float:
        values = [(t[name] - (t[less] if less else 0)) / t["plain"] for t in times]
        return statistics.median(values)

    one = max(0.0, ratio("chain", "free chain") / gamma)
    many = max(one, (ratio("tree", "free tree") - one) / max(probe.engine.depth - 1, 1))
    return {n: ratio(f"v {n}") for n in _TIMED}, {1: one, RANKS: many}


def shortlist(
    by_rank: Sequence[float], verify: Mapping[int, float], level: Mapping[int, float], longest: int
) -> list[Candidate]:
    """The best three chains and the best three trees by prediction.

    tokens / (v(nodes) + the draft's levels), over plain decoding; costs between measured sizes are
    on straight lines.
    """

    def cost(table: Mapping[int, float], size: int) -> float:
        sizes, values = list(table), list(table.values())
        if size > sizes[-1]:  # On as from the last but one.
            slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
            return values[-1] + slope * (size - sizes[-1])
        return float(np.interp(size, sizes, values))

    def candidate(gamma: int, parents: tuple[int, ...]) -> Candidate:
        tree = Tree(parents=parents)
        tokens, topology = expected_tokens(by_rank, parents), tree.topology
        assert topology is not None
        depths = topology.depths()
        # The first level is fed one token, each other one the nodes above that have children.
        fed = [1] + [
            len({parents[i] for i in np.flatnonzero(depths == d)}) for d in range(1, topology.depth)
        ]
        time = cost(verify, tree.size) + sum(cost(level, m) for m in fed)
        return Candidate(gamma, None if gamma else tree, tokens, tokens / time)

    chains = [candidate(g, tuple(range(-1, g - 1))) for g in GAMMAS if g <= longest]
    trees = {
        parents: candidate(0, parents)
        for n in NODES
        for d in DEPTHS
        if d <= min(longest, n)
        for parents in [best_parents(by_rank, n, d)]
        if parents != tuple(range(-1, len(parents) - 1))
    }

    def best(some: Sequence[Candidate], count: int) -> list[Candidate]:
        return sorted(some, key=lambda each: -(each.predicted or 0))[:count]

    return best(chains, 3) + best(list(trees.values()), 3)


def can_decode(decoder: Decoders, candidate: Candidate) -> bool:
    """Whether the draft can grow it: copying, for one, makes chains side by side and no others."""
    try:
        decoder(candidate.gamma, candidate.tree)
    except ValueError:
        return False
    return True


def measured_candidates(
    decoder: Decoders, candidates: Sequence[Candidate], batches: Sequence[Batch]
) -> tuple[Candidate, ...]:
    """With their speedups over plain decoding, a token, interleaved; the fastest first."""
    decoders = {"plain": decoder(0, None)}
    decoders |= {str(each): decoder(each.gamma, each.tree) for each in candidates}
    tokens = {
        name: sum(int(each.decode(batch).num_tokens.sum()) for batch in batches)
        for name, each in decoders.items()
    }
    works = [
        Work(name, lambda each=each, batch=batch: each.decode(batch), batch.shape)
        for batch in batches
        for name, each in decoders.items()
    ]
    times = time_interleaved(works, _DECODES)

    def speedup(name: str) -> float:
        ratio = tokens[name] / tokens["plain"]
        return statistics.median(t["plain"] / t[name] for t in times) * ratio

    found = [dataclasses.replace(each, measured=speedup(str(each))) for each in candidates]
    return tuple(sorted(found, key=lambda each: -(each.measured or 0)))


def remembered(directory: Path, key: str) -> TreeChoice | None:
    """The choice made before for ``key``, if any can be read."""

    def tree(found: Any) -> Tree | None:
        return found and Tree(**found)

    try:
        found = dict(recall(directory / _FILE, key))
        found["candidates"] = tuple(
            Candidate(**each | {"tree": tree(each["tree"])}) for each in found["candidates"]
        )
        found["verify_ratio"] = {int(n): v for n, v in found["verify_ratio"].items()}
        return TreeChoice(
            **found | {"tree": tree(found["tree"]), "by_rank": tuple(found["by_rank"])}
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(directory: Path, key: str, choice: TreeChoice) -> None:
    """Keeps a choice for later; a directory that cannot be written to is no error."""
    keep(directory / _FILE, key, dataclasses.asdict(choice))
