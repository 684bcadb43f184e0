"""One decode call by call, timed, as Figure 5 of Leviathan et al. 2023 shows it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Int

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.measure import costs
from specdec.types import DrafterState, Encoded, Prompt

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
    It need not wait for the host after each call, nor hand on caches from program to program, so it
    takes less time than what is shown here.

    Everything runs once unmeasured; of ``REPETITIONS`` decodes, the one of median time is kept.

    Args:
      batch: of one row.

    Raises:
      ValueError: it has more rows.
    """
    if len(batch.row_ids) != 1:
        raise ValueError(f"A timeline is of one row, this batch has {len(batch.row_ids)}.")
    _unmeasured, *runs = [_decode(decoder, batch) for _ in range(1 + REPETITIONS)]
    return sorted(runs, key=lambda run: run.total_ms)[REPETITIONS // 2]


def _decode(decoder: BatchDecoder, batch: Batch) -> Timeline:
    engine, params, arguments = decoder.engine, decoder.params, decoder.arguments(batch)
    options = {"output_bucket": decoder.output_bucket}
    state = jax.block_until_ready(costs.start(engine, *arguments, **options))
    events: list[Event] = []
    begin = time.perf_counter()

    def timed(kind: Kind, call, *args, **options):
        start = time.perf_counter()
        result = jax.block_until_ready(call(*args, **options))
        end = time.perf_counter()
        events.append(Event(kind, 1e3 * (start - begin), 1e3 * (end - begin)))
        return result

    def around(name: str, phase: Callable[..., Any], *args: Any) -> Any:
        """A block's phases as events: scoring, verifying and committing are one, "target"."""
        if name == "draft" and engine.drafter is None:
            return phase(*args)
        result = timed("draft" if name == "draft" else "target", _phase, phase, *args)
        if name in ("verify", "commit"):
            last, before = events.pop(), events.pop()
            emitted = result[1].num_emitted.item() if name == "commit" else 0
            events.append(dataclasses.replace(before, end_ms=last.end_ms, emitted=emitted))
        return result

    first = timed("target_encoder", costs.start, Engine(engine.target), *arguments, **options)
    if engine.drafter:
        inputs = (engine, params, arguments[1], first.encoded)
        timed("draft_encoder", _init_drafter, *inputs, **options)
    while not state.finished.item():
        numbers = _numbers(state.row_keys, state.block)
        state, _ = engine.step(params, state, numbers, around=around)
    tokens = np.asarray(state.tokens[0, : state.num_tokens[0]])
    return Timeline(engine.depth, tuple(events), tokens)


@decode_jit(static_argnames="phase")
def _phase(phase, *args):
    return phase(*args)


@decode_jit()
def _numbers(keys: Array, block: Int[Array, ""]) -> BlockRandom:
    return BlockRandom.of(keys, block)


@decode_jit(static_argnames=("engine", "output_bucket"))
def _init_drafter(
    engine: Engine, params: EngineParams, prompt: Prompt, encoded: Encoded, *, output_bucket: int
) -> DrafterState:
    """What a drafter does once: a draft model's encoder, mostly."""
    assert engine.drafter
    return engine.drafter.init(params.drafter, prompt, output_bucket, encoded)
