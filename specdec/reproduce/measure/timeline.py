"""One decode call by call, timed, as Figure 5 of Leviathan et al. 2023 shows it."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine

Kind = Literal["target_encoder", "draft_encoder", "draft", "target"]
REPETITIONS = 5


@dataclasses.dataclass(frozen=True)
class Event:
    """One call from start to result, in milliseconds since the decode began."""

    # "draft_encoder" is what a draft does once an input, be it a model or not; "draft", all gamma
    # guesses of a block; "target", a target call with verification and bookkeeping, or a step of
    # plain decoding.
    kind: Kind
    start_ms: float
    end_ms: float
    emitted: int = 0  # Tokens that a target call emitted; 0 for other kinds.


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A decode's calls, in order; gamma is 0 for plain decoding, and ``tokens`` includes EOS."""

    gamma: int
    events: tuple[Event, ...]
    tokens: np.ndarray

    @property
    def total_ms(self) -> float:
        """Milliseconds from the first call's start to the last one's end."""
        return self.events[-1].end_ms - self.events[0].start_ms


def record(decoder: BatchDecoder, batch: Batch) -> Timeline:
    """Decodes one text with the host between the calls, and times each call.

    The tokens are those of :meth:`BatchDecoder.decode`, which runs the same parts in one program.
    That program does not wait for the host after each call, nor pass caches between programs. So it
    takes less time than is shown here.

    Everything runs once unmeasured; of ``REPETITIONS`` decodes, the one of median time is kept.

    Args:
      batch: of one row.

    Raises:
      ValueError: it has more rows.
    """
    if len(batch.row_ids) != 1:
        raise ValueError(f"A timeline is of one row, this batch has {len(batch.row_ids)}.")
    engine, bucket = decoder.engine, decoder.output_bucket
    start = functools.partial(engine.start, output_bucket=bucket)
    encode = functools.partial(Engine(engine.target).start, output_bucket=bucket)

    def prefill(params, prompt):
        return engine.target.start(params.target, prompt, bucket + engine.nodes + 1)

    def init_drafter(params, prompt, target):
        return engine.drafter and engine.drafter.init(params.drafter, prompt, bucket, target)

    def target_call(params, state, draft, random):
        scored = engine.score(params, state, draft)
        verdict = engine.verify(scored, draft, random)
        return engine.commit(params, state, draft, scored, verdict)

    def decode() -> Timeline:
        params, prompt, *rest = decoder.arguments(batch)
        state = jax.block_until_ready(_call(start, params, prompt, *rest))
        events: list[Event] = []
        begin = time.perf_counter()

        def timed(kind: Kind, *call: Any) -> Any:
            start = time.perf_counter()
            result = jax.block_until_ready(_call(*call))
            end = time.perf_counter()
            events.append(Event(kind, 1e3 * (start - begin), 1e3 * (end - begin)))
            return result

        timed("target_encoder", encode, params, prompt, *rest)
        if engine.drafter:
            started = jax.block_until_ready(_call(prefill, params, prompt))
            timed("draft_encoder", init_drafter, params, prompt, started)
        while not state.finished.item():
            numbers = _call(BlockRandom.of, state.row_keys, state.block)
            if engine.drafter:
                draft, state = timed("draft", engine.propose, params, state, numbers)
            else:
                draft, state = engine.propose(params, state, numbers)
            state, info = timed("target", target_call, params, state, draft, numbers)
            events[-1] = dataclasses.replace(events[-1], emitted=info.num_emitted.item())
        tokens = np.asarray(state.tokens[0, : state.num_tokens[0]])
        return Timeline(engine.depth, tuple(events), tokens)

    _unmeasured, *runs = [decode() for _ in range(1 + REPETITIONS)]
    return sorted(runs, key=lambda run: run.total_ms)[REPETITIONS // 2]


@decode_jit(what="a phase", static_argnames="function")
def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
