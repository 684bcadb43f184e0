"""Tokens a target call by trees and chains, what calls of their sizes cost here, and whether
``tree="auto"`` finds the fastest.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.api import Pair
from specdec.core.machine import device_name
from specdec.core.stats import RunStats
from specdec.core.theory_measured import cluster_interval
from specdec.core.tree_shapes import best_parents
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, commonest, make_batches
from specdec.decoding.loop import decode
from specdec.decoding.options import Decoding
from specdec.drafters.shape import Chain, Shape, Tree
from specdec.load import load_pair
from specdec.measure import costs
from specdec.measure.choice import Candidate
from specdec.measure.chooser import PLAIN, Runner, time_in_turns, with_speedups
from specdec.measure.decode_choice import RANKS, acceptance_by_rank
from specdec.measure.timing import Spread, time_interleaved
from specdec.studies.measure import same_blocks
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept
from specdec.types import SamplingConfig
from specdec.verifiers.base import Verifier
from specdec.verifiers.recursive import RecursiveVerifier
from specdec.verifiers.traversal import TraversalVerifier

GAMMAS = (3, 5, 8)
BRANCHINGS = ((4, 1, 1, 1), (2, 2, 1, 1))
NODES, DEPTH = 16, 8
BEST_FIRST = Tree(nodes=NODES, depth=6, siblings=4)
FIXED = (  # Settings that "auto" is held against, beside plain decoding and its own candidates.
    *(Candidate(Chain(n)) for n in (1, 2, 3, 5)),
    *(Candidate(Tree(each)) for each in ((2, 1, 1), *BRANCHINGS)),
    Candidate(BEST_FIRST),
)
SIZES = (1, 3, 7, 11, 15, 23, 31)  # Guesses of the calls that are timed.
_PROBED, _REPETITIONS = 64, 9
RESULT = "tree.json"


@dataclasses.dataclass(frozen=True)
class TreeRuns:
    """Decodes with each shape, at temperatures 0 and 1, and the costs of calls.

    The shapes are chains, trees of fixed branching, the best tree of 16 nodes by the draft's own
    acceptance by rank (judged by both recursive and traversal verification where guesses are
    drawn), and a best-first tree of 16 nodes. Recursive and traversal verification are also
    compared on the same blocks, and ``tree="auto"`` with fixed settings, on rows that it did not
    choose by.

    Attributes:
      name: short, for tables and directories.
      task: opens inputs, once; ``num_examples`` of them, evenly spread.
      drafts: names of checkpoints; costs are measured with the first one.
      All else: see :meth:`specdec.Pair.generate`.
    """

    name: str
    task: Callable[[], Task]
    target: str
    drafts: Sequence[str]
    num_examples: int
    max_decode_len: int
    seed: int = 0

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        texts = evenly(self.task().examples, self.num_examples)
        for draft in self.drafts:
            piece = _Piece(self, draft, texts)
            where = (slug(self.name), "trees", slug(draft))
            for temperature in (0.0, 1.0):
                yield (
                    (*where, f"t{temperature:g}"),
                    lambda path, t=temperature, p=piece: p.kept(path, lambda: p.by_shape(t)),
                )
                yield (
                    (*where, f"auto_t{temperature:g}"),
                    lambda path, t=temperature, p=piece: p.kept(path, lambda: p.auto(t)),
                )
            yield (*where, "verifiers"), lambda path, p=piece: p.kept(path, p.verifiers)
            if draft == self.drafts[0]:
                yield (*where, "costs"), lambda path, p=piece: p.kept(path, p.costs)


@dataclasses.dataclass
class _Piece:
    """One draft's."""

    runs: TreeRuns
    draft: str
    texts: Sequence[Any]

    def kept(self, path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is on disk of the same weights and settings, or made now."""
        pair = load_pair(target=self.runs.target, draft=self.draft)
        names = ("num_examples", "seed", "max_decode_len")
        settings = {name: getattr(self.runs, name) for name in names}
        return kept(path / RESULT, pair, settings, make)

    def _pair(self) -> tuple[Pair, list[np.ndarray]]:
        pair = load_pair(target=self.runs.target, draft=self.draft)
        given = model_inputs(self.texts, pair.vocabulary)
        return pair, pair.token_ids(given, max_input_len=512)

    def _decoder(
        self, pair: Pair, temperature: float, shape: Shape | None = None,
        verifier: Verifier | None = None,
    ) -> BatchDecoder:  # fmt: skip
        return pair.decoder(self._decoding(temperature).with_shape(shape), verifier=verifier)

    def _decoding(self, temperature: float) -> Decoding:
        return Decoding(
            tree="auto", sampling=SamplingConfig(temperature), seed=self.runs.seed,
            max_decode_len=self.runs.max_decode_len,
        )  # fmt: skip

    def by_shape(self, temperature: float) -> dict[str, Any]:
        """Tokens a target call of every shape, with a 95 % interval by rows."""
        pair, ids = self._pair()
        by_rank, best = self._best_tree(pair, ids, temperature)
        ways: dict[str, tuple[Shape, Verifier | None]] = {
            f"chain of {n}": (Chain(n), None) for n in GAMMAS
        }
        ways |= {str(tree): (tree, None) for tree in map(Tree, BRANCHINGS)}
        ways[f"best tree of {NODES}"] = best, None
        if temperature:
            ways[f"best tree of {NODES}, traversal"] = best, TraversalVerifier()
        ways[f"best-first tree of {NODES}"] = BEST_FIRST, None
        found = {}
        for name, way in ways.items():
            found[name] = self._efficiency(pair, ids, self._decoder(pair, temperature, *way))
            jax.clear_caches()
        return {"by_rank": by_rank, "parents": best.parents, "shapes": found}

    def _best_tree(
        self, pair: Pair, ids: list[np.ndarray], temperature: float
    ) -> tuple[tuple[float, ...], Tree]:
        """Acceptance by rank, and the best tree for it."""
        probe = self._decoder(pair, temperature, Tree((RANKS, 1, 1)))
        by_rank = acceptance_by_rank(_stats(probe, pair, ids[:_PROBED]))
        return by_rank, Tree(parents=best_parents(by_rank, NODES, DEPTH))

    def verifiers(self) -> dict[str, Any]:
        """Tokens a block by recursive and by traversal verification, at temperature 1."""
        pair, ids = self._pair()
        shapes = {str(tree): tree for tree in map(Tree, BRANCHINGS)}
        shapes[f"best tree of {NODES}"] = self._best_tree(pair, ids, 1.0)[1]
        both, found = (RecursiveVerifier(), TraversalVerifier()), {}
        for name, tree in shapes.items():
            decoder = self._decoder(pair, 1.0, tree)
            parts = [
                jax.tree.map(
                    np.asarray,
                    same_blocks.decode_and_compare(
                        decoder.engine, *decoder.arguments(batch), verifiers=both,
                        output_bucket=decoder.output_bucket,
                    ),
                )
                for batch in make_batches(ids, 1, pair.target.model)
            ]  # fmt: skip
            found[name] = same_blocks.compared(parts, ("recursive", "traversal"))
            jax.clear_caches()
        return {"shapes": found}

    def auto(self, temperature: float) -> dict[str, Any]:
        """Whole decodes by the choice of "auto" over plain decoding, and by other settings."""
        pair, ids = self._pair()
        chosen_by, others = ids[:_PROBED], ids[_PROBED:]
        choice = pair.choose(chosen_by, self._decoding(temperature), remember=False)
        jax.clear_caches()
        # Its own candidates too: whether another of them had been better.
        ways = {str(each): each for each in (*FIXED, *choice.candidates)}
        batches = commonest(list(make_batches(others, 1, pair.target.model)))

        def runner(shape: Shape | None) -> Runner:
            decoder = self._decoder(pair, temperature, shape)
            return Runner(decoder.lower, decoder.decode)

        runners = {PLAIN: runner(None)}
        runners |= {name: runner(each.shape) for name, each in ways.items()}
        found = with_speedups(list(ways.values()), time_in_turns(runners, batches))
        speedups = {PLAIN: 1.0} | {str(each): each.measured for each in found}
        chosen = str(choice.shape or PLAIN)
        best = max(speedups, key=lambda name: speedups[name] or 0.0)
        return {
            "said": str(choice), "chosen": chosen, "best": best, "speedups": speedups,
            "num_rows": len(batches), "device": device_name(),
        }  # fmt: skip

    def _efficiency(
        self, pair: Pair, ids: list[np.ndarray], decoder: BatchDecoder
    ) -> dict[str, Any]:
        tokens, calls, parts = [], [], []
        for batch in make_batches(ids, 1, pair.target.model):
            result = decoder.decode(batch)
            tokens += result.num_tokens.tolist()
            calls += result.stats.target_calls.tolist()
            parts.append(result.stats)
        stats = RunStats.total(parts, len(ids), decoder.engine.depth)
        interval = cluster_interval(np.array(tokens, float), np.array(calls, float))
        return {
            "nodes": decoder.engine.nodes, "depth": decoder.engine.depth,
            "block_efficiency": stats.block_efficiency, "interval": interval,
            "alpha": stats.alpha, "num_tokens": stats.emitted,
            "accepted_by_rank": stats.accepted_by_rank,
        }  # fmt: skip

    def costs(self) -> dict[str, Any]:
        """v by the tokens of a call, c by level, seconds to compile a decode; at temperature 1."""
        pair, ids = self._pair()
        batch = commonest(list(make_batches(ids, 1, pair.target.model)))[0]
        compiled = {
            name: _compile_seconds(self._decoder(pair, 1.0, shape), batch)
            for name, shape in (
                ("chain of 4", Chain(4)), ("chain of 8", Chain(8)),
                ("tree 4-1-1-1", Tree((4, 1, 1, 1))), ("best-first tree of 16", BEST_FIRST),
            )
        }  # fmt: skip
        chain, tree = (self._decoder(pair, 1.0, s) for s in (Chain(4), Tree((4, 1, 1, 1))))
        loops = {
            "plain": costs.loop(self._decoder(pair, 1.0), batch),
            "chain": costs.loop(chain, batch), "tree": costs.loop(tree, batch),
            "free chain": costs.loop(costs.without_draft(chain), batch),
            "free tree": costs.loop(costs.without_draft(tree), batch),
        }  # fmt: skip
        for size in SIZES:
            wide = self._decoder(pair, 1.0, Tree((size,)))
            loops[f"v {size}"] = costs.loop(costs.without_draft(wide), batch, ("draft", "target"))
        times = time_interleaved(costs.works_of(loops), _REPETITIONS)

        def spread(name: str, less: str | None = None, parts: int = 1) -> dict[str, float]:
            values = [(t[name] - (t[less] if less else 0)) / t["plain"] / parts for t in times]
            return dataclasses.asdict(Spread.of(values))

        return {
            "verify_ratio": {str(size + 1): spread(f"v {size}") for size in SIZES},
            "level": {
                "chain": spread("chain", "free chain", 4),
                "tree 4-1-1-1": spread("tree", "free tree", 4),
            },
            "compile_seconds": compiled, "device": device_name(),
            "plain_ms": statistics.median(t["plain"] for t in times) * 1e3 * costs.PER_STEP,
        }  # fmt: skip


def _stats(decoder: BatchDecoder, pair: Pair, ids: list[np.ndarray]) -> RunStats:
    parts = [decoder.decode(batch).stats for batch in make_batches(ids, 1, pair.target.model)]
    return RunStats.total(parts, len(ids), decoder.engine.depth)


def _compile_seconds(decoder: BatchDecoder, batch: Batch) -> list[float]:
    """Of a decode, three times."""
    found = []
    for _ in range(3):
        jax.clear_caches()
        arguments = (decoder.engine, *decoder.arguments(batch))
        bucket = {"output_bucket": decoder.output_bucket}
        began = time.perf_counter()
        decode.jitted(*arguments, **bucket).lower(*arguments, **bucket).compile()
        found.append(time.perf_counter() - began)
    return found
