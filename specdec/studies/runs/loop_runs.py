"""What arrays that grow and rows that are refilled save, beside one program for each batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.api import Pair
from specdec.data.tasks import Task, evenly, model_inputs
from specdec.decoding import loop as loops
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, make_batches
from specdec.decoding.options import Decoding
from specdec.decoding.refilling import Refilled
from specdec.drafters.base import DraftSpec
from specdec.load import load_pair
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.studies.benchmarks.workload import Config, exported
from specdec.studies.runs.alpha_run import slug
from specdec.studies.runs.kept import kept

RESULT = "loops.json"


@dataclasses.dataclass(frozen=True)
class LoopRuns:
    """Plain decoding and a chain, on texts of a task, or on random tokens.

    Attributes:
      name: short, for tables and directories.
      target: a checkpoint, or the shape of random weights.
      gamma: of the chain.
      limits: tokens that outputs may have, by which single texts are decoded.
      longest: tokens that they do have, at most; the same for all limits.
      num_texts: single texts.
      repetitions: of each, in turn.
      task: opens inputs, once; None for texts of 32 random tokens.
      batch_sizes: of decodes of the whole task, with and without refilling.
    """

    name: str
    target: str | Config
    draft: str | DraftSpec
    gamma: int
    limits: Sequence[int]
    longest: int
    num_texts: int
    repetitions: int
    task: Callable[[], Task] | None = None
    batch_sizes: Sequence[int] = ()

    def pieces(self) -> Iterator[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]]]:
        """Where each result stands, and what makes it or reads it there."""
        task = self.task() if self.task else None
        methods = {"plain": Decoding("autoregressive"), "speculative": Decoding(gamma=self.gamma)}
        for name, how in methods.items():
            index = (slug(self.name), "loops", name)
            yield index, lambda directory, how=how: self._piece(directory, task, how)

    def _piece(self, directory: Path, task: Task | None, how: Decoding) -> dict[str, Any]:
        target = exported(self.target, directory.parent / "weights", 0, "float32")
        pair = load_pair(target=target, draft=self.draft)
        settings = {
            "task": task and task.name, "target": str(self.target), "draft": str(self.draft),
            "gamma": how.depth, "limits": list(self.limits), "longest": self.longest,
            "num_texts": self.num_texts, "batch_sizes": list(self.batch_sizes),
            "repetitions": self.repetitions,
        }  # fmt: skip

        def measured() -> dict[str, Any]:
            if task:
                given = model_inputs(task.examples, pair.vocabulary)
                ids = sorted(pair.token_ids(given, max_input_len=512), key=len)
            else:
                shape, model = (self.num_texts, 32), pair.target.model
                tokens = np.random.default_rng(0).integers(2, model.vocab_size, shape)
                tokens[:, -1] = model.eos_ids[0]
                ids = list(tokens.astype(np.int32))
            return {
                "limits": self._limits(pair, evenly(ids, self.num_texts), how),
                "batches": {
                    f"batch{size}": self._batches(pair, ids, size, how)
                    for size in self.batch_sizes
                },
            }  # fmt: skip

        return kept(directory / RESULT, pair, settings, measured)

    def _limits(
        self, pair: Pair, ids: Sequence[np.ndarray], how: Decoding
    ) -> dict[str, dict[str, Any]]:
        """Milliseconds a token by limit, with arrays that grow and with arrays for all of it."""
        batches, works, num_tokens = list(make_batches(ids, 1, pair.target.model)), [], 0
        for limit in self.limits:
            decoder = pair.decoder(how, max_decode_len=limit)
            num_tokens = sum(
                int(decoder.decode(batch, limit=self.longest).num_tokens[0]) for batch in batches
            )

            def grown(batch: Batch, decoder: BatchDecoder = decoder) -> Any:
                return decoder.decode(batch, limit=self.longest)

            def whole(batch: Batch, decoder: BatchDecoder = decoder) -> Any:
                params, prompt, row_ids, _, seed = decoder.arguments(batch)
                return loops.decode(
                    decoder.loop, params, prompt, row_ids, self.longest, seed,
                    output_bucket=decoder.output_bucket,
                )  # fmt: skip

            for name, run in (("grown", grown), ("whole", whole)):
                works += [
                    Work(f"{limit} {name}", lambda run=run, batch=batch: run(batch), batch.shape)
                    for batch in batches
                ]
        times = time_interleaved(works, self.repetitions)
        first = f"{self.limits[0]} grown"

        def spread(value: Callable[[dict[str, float]], float]) -> dict[str, float]:
            return dataclasses.asdict(Spread.of(map(value, times)))

        return {
            f"limit{limit}": {
                f"{name}": {
                    "ms_per_token": spread(lambda each, key=key: 1e3 * each[key] / num_tokens),
                    "over_first": spread(lambda each, key=key: each[key] / each[first]),
                }
                for name in ("grown", "whole")
                for key in [f"{limit} {name}"]
            }
            for limit in self.limits
        }

    def _batches(
        self, pair: Pair, ids: Sequence[np.ndarray], batch_size: int, how: Decoding
    ) -> dict[str, Any]:
        """Rows a second of the whole task, each batch alone and refilled."""
        decoder = pair.decoder(how, max_decode_len=self.limits[0])
        batches = list(make_batches(ids, batch_size, pair.target.model))
        steps: list[np.ndarray] = []

        def alone() -> None:
            steps.clear()
            for batch in batches:
                steps.append(np.asarray(decoder.decode(batch).stats.target_calls))

        def refilled() -> int:
            loop = Refilled(decoder, batch_size, trace=False)
            for _ in loop.decode(batches):
                pass
            return loop.blocks

        works = [Work("alone", alone, 0), Work("refilled", refilled, 0)]
        times = time_interleaved(works, self.repetitions)
        needed = sum(int(np.sum(each)) for each in steps) / batch_size
        return {
            "rows": len(ids), "steps_needed": needed,
            "steps_alone": sum(int(np.max(each)) for each in steps) / needed,
            "steps_refilled": refilled() / needed,
            "rows_per_second": {
                work.name: dataclasses.asdict(
                    Spread.of(len(ids) / each[work.name] for each in times)
                )
                for work in works
            },
            "gain": dataclasses.asdict(
                Spread.of(each["alone"] / each["refilled"] for each in times)
            ),
        }  # fmt: skip
