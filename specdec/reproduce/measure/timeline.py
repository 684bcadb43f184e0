"""One decode call by call, timed, as Figure 5 of Leviathan et al. 2023 shows it."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal

import jax
import numpy as np

from specdec.core.compilation import decode_jit
from specdec.core.randomness import BlockRandom
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch
from specdec.decoding.engine import Engine, EngineParams
from specdec.types import DecodeState, Draft, DrafterState, Prompt, Start

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
    _unmeasured, *runs = [_decode(decoder, batch) for _ in range(1 + REPETITIONS)]
    return sorted(runs, key=lambda run: run.total_ms)[REPETITIONS // 2]


def _decode(decoder: BatchDecoder, batch: Batch) -> Timeline:
    engine, params, arguments = decoder.engine, decoder.params, decoder.arguments(batch)
    options = {"output_bucket": decoder.output_bucket}
    state = jax.block_until_ready(_start(engine, *arguments, **options))
    events: list[Event] = []
    begin = time.perf_counter()

    def timed(kind: Kind, call, *args, **options):
        start = time.perf_counter()
        result = jax.block_until_ready(call(*args, **options))
        end = time.perf_counter()
        events.append(Event(kind, 1e3 * (start - begin), 1e3 * (end - begin)))
        return result

    timed("target_encoder", _start, Engine(engine.target), *arguments, **options)
    if engine.drafter:
        inputs = (engine, params, arguments[1])
        started = jax.block_until_ready(_start_target(*inputs, **options))
        timed("draft_encoder", _init_drafter, *inputs, started, **options)
    while not state.finished.item():
        numbers = _call(BlockRandom.of, state.row_keys, state.block)
        if engine.drafter:
            draft, state = timed("draft", _call, engine.propose, params, state, numbers)
        else:
            draft, state = engine.propose(params, state, numbers)
        state, info = timed("target", _target_call, engine, params, state, draft, numbers)
        events[-1] = dataclasses.replace(events[-1], emitted=info.num_emitted.item())
    tokens = np.asarray(state.tokens[0, : state.num_tokens[0]])
    return Timeline(engine.depth, tuple(events), tokens)


@decode_jit(static_argnames=("engine", "output_bucket"))
def _start(engine: Engine, params: EngineParams, *given, output_bucket: int) -> DecodeState:
    return engine.start(params, *given, output_bucket=output_bucket)


@decode_jit(static_argnames="function")
def _call(function, *args):
    return function(*args)


@decode_jit(static_argnames="engine")
def _target_call(
    engine: Engine, params: EngineParams, state: DecodeState, draft: Draft, random: BlockRandom
):
    scored = engine.score(params, state, draft)
    verdict = engine.verify(scored, draft, random)
    return engine.commit(params, state, draft, scored, verdict)


@decode_jit(static_argnames=("engine", "output_bucket"))
def _start_target(
    engine: Engine, params: EngineParams, prompt: Prompt, *, output_bucket: int
) -> Start:
    return engine.target.start(params.target, prompt, output_bucket + engine.nodes + 1)


@decode_jit(static_argnames=("engine", "output_bucket"))
def _init_drafter(
    engine: Engine, params: EngineParams, prompt: Prompt, target: Start, *, output_bucket: int
) -> DrafterState:
    """Start a drafter, once: a draft model's encoder, mostly."""
    assert engine.drafter
    return engine.drafter.init(params.drafter, prompt, output_bucket, target)
