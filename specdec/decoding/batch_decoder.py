"""An engine or a search with all it needs to decode batches."""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jaxtyping import Bool

from specdec.core.compilation import Program, compile_together
from specdec.core.randomness import seed_words
from specdec.decoding import loop as loops
from specdec.decoding.batches import Batch, bucket, refuse_failed
from specdec.decoding.blocks import blocks_of
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.hypotheses import Hypothesis, end_of
from specdec.decoding.loop import Loop
from specdec.decoding.refilling import Refilled
from specdec.decoding.samples import samples_of
from specdec.models.base import LoadedModel
from specdec.models.partitioning import ways
from specdec.models.placing import agreed, to_host
from specdec.rules.base import Rule
from specdec.types import AnyArray, DecodeResult, Params, Prompt

R = TypeVar("R")
T = TypeVar("T")
_PAUSE = 0.1  # Seconds between pauses for the host to look, unless a block takes longer.
Arguments = tuple[Params, Prompt, AnyArray, int, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Pause(Generic[R]):
    """A loop that the host looks at.

    Attributes:
      result: of its rows so far, in NumPy arrays.
      finished: [B] which of them have ended.
      over: whether nothing follows because the time is over.
    """

    result: R
    finished: Bool[np.ndarray, " b"]
    over: bool


class LoopDecoder(abc.ABC, Generic[R]):
    """Decodes batches by a loop. R is the result of a batch, of NumPy arrays [B, ...].

    Attributes:
      target: the loop's, as it was loaded.
      max_decode_len: tokens an output may have, EOS included.
      seed: of the random numbers; 64 bits.
    """

    target: LoadedModel
    max_decode_len: int
    seed: int

    @property
    @abc.abstractmethod
    def loop(self) -> Loop[Any, R]:
        """The loop that decodes: an engine, or a search."""

    @property
    @abc.abstractmethod
    def loop_params(self) -> Params:
        """The parameters that :attr:`loop` decodes with."""

    @abc.abstractmethod
    def check_result(self, batch: Batch, result: R) -> None:
        """Raises ValueError if logits were NaN; it names the row."""

    @abc.abstractmethod
    def outputs(self, result: R, index: int) -> list[Hypothesis]:
        """A row's outputs without their texts: its samples, or its hypotheses, best first."""

    @property
    def output_bucket(self) -> int:
        """Size of the longest output, and of the result's arrays."""
        return bucket(self.max_decode_len)

    @property
    def first_bucket(self) -> int:
        """Tokens for which there are arrays at first."""
        return min(self.output_bucket, loops.FIRST_BUCKET)

    def arguments(self, batch: Batch) -> Arguments:
        """Arguments of :meth:`Loop.start`: arrays on their devices."""
        prompt, row_ids = self.target.place_rows((batch.prompt, batch.row_ids))
        return self.loop_params, prompt, row_ids, self.max_decode_len, seed_words(self.seed)

    def programs(self, batch: Batch, *, trace: bool = False) -> tuple[Program, ...]:
        """The programs with which :meth:`decode` begins, to be compiled in any thread.

        Raises:
          ValueError: the verifier cannot verify what the drafter makes.
        """
        return self._programs(self.arguments(batch), trace)

    def _programs(self, arguments: Arguments, trace: bool) -> tuple[Program, ...]:
        start = self._start(arguments, trace)
        if self.target.partitioning is not None:
            return (start,)  # Only its result says how it lies on the mesh.
        return start, loops.resume.program(
            self.loop, arguments[0], start.traced.out_info, loops.UNLIMITED,
            output_bucket=self.first_bucket, size=self.output_bucket,
        )  # fmt: skip

    def _start(self, arguments: Arguments, trace: bool) -> Program:
        capacity = self.first_bucket
        return loops.start.program(self.loop, *arguments, output_bucket=capacity, trace=trace)

    def decode(self, batch: Batch, *, limit: int | None = None, trace: bool = False) -> R:
        """Decodes a batch and brings the result to the host as NumPy arrays.

        Args:
          limit: tokens an output of this batch may have, at most ``max_decode_len``, the default.

        Raises:
          ValueError: the mesh cannot cut the batch into equal parts; logits are NaN (it names the
            row).
        """
        return _last(self.pauses(batch, limit=limit, trace=trace)).result

    def pauses(
        self, batch: Batch, *, often: bool = False, seconds: float | None = None,
        limit: int | None = None, trace: bool = False,
    ) -> Iterator[Pause[R]]:  # fmt: skip
        """Decodes a batch, and gives its result so far whenever the loop pauses.

        The loop pauses where its rows need larger arrays. Who asks for no more ends it.

        Args:
          often: whether it also pauses for the host to look: behind the first block, and then about
            each tenth of a second, for a call takes time by itself.
          seconds: from now on, when it ends; None for any time. There is one pause at least.
          limit: as in :meth:`decode`.

        Raises:
          ValueError: see :meth:`decode`.
        """
        begun, where, loop = time.monotonic(), self.target.partitioning, self.loop
        params, prompt, row_ids, most, seed = arguments = self.arguments(batch)
        given = prompt, row_ids, most if limit is None else limit, seed
        capacity, blocks = self.first_bucket, loops.UNLIMITED
        if looks := often or seconds is not None:
            blocks = 1
        if not self._start(arguments, trace).compiled:
            compile_together(self._programs(arguments, trace))
        state = loops.start(loop, params, *given, output_bucket=capacity, trace=trace)
        while True:
            before = time.perf_counter()
            state, status, result = loops.resume(
                loop, params, state, blocks, output_bucket=capacity, size=self.output_bucket
            )
            status, result = to_host((status, result))
            if looks:
                took = agreed(where, time.perf_counter() - before)
                blocks = max(1, min(2 * blocks, int(_PAUSE / took * blocks)))
            self.check_result(batch, result)
            done = bool(np.all(status.finished))
            over = seconds is not None and agreed(where, time.monotonic() - begun >= seconds)
            yield Pause(result, status.finished, over and not done)
            if done or over:
                return
            needed = loops.capacity(status)
            if needed > capacity:
                capacity = needed
                state = loops.resized(
                    loop, params, state, *given, output_bucket=capacity, trace=trace
                )

    def decode_all(
        self, batches: Iterable[Batch], *, trace: bool = False, seconds: float | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Batch, R]]:  # fmt: skip
        """Decodes batches of as many rows each, in their order.

        While rows go on, others of the next batches take the places of those that have ended. Rows
        do not depend on it.

        Args:
          seconds: from now on, when it ends; None for any time. What the batch under way has come
            to by then is given, and nothing of those behind it.
          limit: as in :meth:`decode`.

        Raises:
          ValueError: see :meth:`decode`.
        """
        begun, left, batches = time.monotonic(), seconds, iter(batches)
        some = list(itertools.islice(batches, 2))
        size, every = len(some[0].row_ids) if some else 0, itertools.chain(some, batches)
        if seconds is None and len(some) > 1 and size > ways(self.target.partitioning, "batch"):
            for batch, result in Refilled(self, size, trace, limit).decode(every):
                self.check_result(batch, result)
                yield batch, result
            return
        for number, batch in enumerate(every):  # No row waits for another one.
            if number and seconds is not None:
                left = agreed(self.target.partitioning, begun + seconds - time.monotonic())
                if left <= 0:
                    return
            yield batch, _last(self.pauses(batch, seconds=left, trace=trace, limit=limit)).result


def _last(items: Iterable[T]) -> T:
    (item,) = collections.deque(items, maxlen=1)
    return item


@dataclasses.dataclass(frozen=True)
class BatchDecoder(LoopDecoder[DecodeResult]):
    """Decodes batches in one way."""

    # See `Engine`.
    engine: Engine
    params: EngineParams
    target: LoadedModel  # The engine's, as it was loaded.
    max_decode_len: int  # Tokens a row may emit, EOS included.
    seed: int  # Of the random numbers; 64 bits.
    rules: tuple[Rule, ...] = ()  # For logits, as they were given.

    @property
    def loop(self) -> Engine:
        return self.engine

    @property
    def loop_params(self) -> EngineParams:
        return self.params

    def outputs(self, result: DecodeResult, index: int) -> list[Hypothesis]:
        return [self._output(row) for row in samples_of(result, index, self.engine.samples)]

    def _output(self, row: DecodeResult) -> Hypothesis:
        """Output of a result without axes of rows and samples."""
        count, asked_for = int(row.num_tokens), {}
        tokens, stopped = np.asarray(row.tokens[:count]), bool(row.stopped)
        if row.log_probs is not None:
            kept = jax.tree.map(lambda leaf: leaf[:count], row.log_probs)
            asked_for = {
                "log_probs": kept.plain, "adjusted_log_probs": kept.adjusted,
                "ruled_log_probs": kept.ruled, "margins": kept.margins,
                "alternatives": (kept.top_tokens, kept.top) if kept.top.shape[-1] else None,
            }  # fmt: skip
        if row.trace is not None:
            trace = jax.tree.map(lambda leaf: leaf[None], row.trace)
            asked_for["blocks"] = blocks_of(trace, 0)
        end = end_of(tokens, stopped, self.target.model.eos_ids, self.max_decode_len)
        return Hypothesis(tokens, end, **asked_for)

    def check_result(self, batch: Batch, result: DecodeResult) -> None:
        source = f"{self.target.source} or of its draft"
        refuse_failed(batch, result.failed, result.num_tokens, source, self.rules)

    def check(self, batch: Batch, *, trace: bool = False) -> None:
        """Traces the program that decodes such a batch, without compiling it.

        Raises:
          ValueError: the verifier cannot verify what the drafter makes.
        """
        arguments = (self.engine, *self.arguments(batch))
        static = {"output_bucket": self.output_bucket, "trace": trace}
        loops.decode.jitted(*arguments, **static).eval_shape(*arguments, **static)
