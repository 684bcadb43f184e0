"""An engine or a search with all it needs to decode batches: what is timed, measured and served."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jaxtyping import Bool

from specdec.core.randomness import seed_words
from specdec.decoding import loop as loops
from specdec.decoding.batches import Batch, bucket, refuse_nan, refuse_stuck
from specdec.decoding.engine import Engine, EngineParams
from specdec.decoding.loop import Loop
from specdec.decoding.refilling import Refilled
from specdec.models.base import LoadedModel
from specdec.models.partitioning import Partitioning, ways
from specdec.models.placing import agreed, to_host
from specdec.rules.base import Rule
from specdec.types import AnyArray, DecodeResult, Params, Prompt

R = TypeVar("R")
Arguments = tuple[Params, Prompt, AnyArray, int, np.ndarray]


class LoopDecoder(abc.ABC, Generic[R]):
    """Decodes batches by a loop. R is what a batch comes to, of NumPy arrays [B, ...].

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
        """What decodes."""

    @property
    @abc.abstractmethod
    def loop_params(self) -> Params:
        """What it decodes with."""

    @abc.abstractmethod
    def check_result(self, batch: Batch, result: R) -> None:
        """Raises ValueError if logits were NaN; it names the row."""

    @property
    def output_bucket(self) -> int:
        """Size of the longest output, and of the result's arrays."""
        return bucket(self.max_decode_len)

    @property
    def first_bucket(self) -> int:
        """Tokens for which there are arrays at first."""
        return min(self.output_bucket, loops.FIRST_BUCKET)

    def arguments(self, batch: Batch) -> Arguments:
        """What :meth:`Loop.start` takes: arrays on their devices."""
        prompt, row_ids = self.target.place_rows((batch.prompt, batch.row_ids))
        return self.loop_params, prompt, row_ids, self.max_decode_len, seed_words(self.seed)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        """The program with which :meth:`decode` begins, to be compiled in any thread.

        Raises:
          ValueError: the verifier cannot verify what the drafter makes.
        """
        return loops.begin.lower(
            self.loop, *self.arguments(batch), output_bucket=self.first_bucket,
            size=self.output_bucket, trace=False,
        )  # fmt: skip

    def decode(self, batch: Batch, *, limit: int | None = None, trace: bool = False) -> R:
        """Decodes a batch and brings the result to the host as NumPy arrays.

        Args:
          limit: tokens an output of this batch may have, at most ``max_decode_len``, the default.

        Raises:
          ValueError: the mesh cannot cut the batch into equal parts; logits are NaN (it names the
            row).
        """
        loop, (params, prompt, row_ids, most, seed) = self.loop, self.arguments(batch)
        given = params, prompt, row_ids, most if limit is None else limit, seed
        size, capacity = self.output_bucket, self.first_bucket
        state, status, result = loops.begin(
            loop, *given, output_bucket=capacity, size=size, trace=trace
        )
        while not np.all((status := to_host(status)).finished):
            capacity = loops.capacity(status)
            state = loops.resized(
                loop, params, state, *given[1:], output_bucket=capacity, trace=trace
            )
            state, status, result = loops.resume(
                loop, params, state, output_bucket=capacity, size=size
            )
        result = to_host(result)
        self.check_result(batch, result)
        return result

    def parts(
        self, batch: Batch, seconds: float, *, trace: bool = False
    ) -> Iterator[tuple[R, Bool[np.ndarray, " b"]]]:
        """Decodes a batch, and gives what it has come to so far, again and again.

        Who asks for no more ends it. The first part is one block, others have as many as take
        ``seconds``: a call takes time by itself, which a short block would wait for.

        Yields:
          the result so far, as NumPy arrays, and which rows have ended.

        Raises:
          ValueError: see :meth:`decode`.
        """
        loop, (params, prompt, row_ids, limit, seed) = self.loop, self.arguments(batch)
        given = prompt, row_ids, limit, seed
        size, capacity, blocks = self.output_bucket, self.first_bucket, 1
        state = loops.start(loop, params, *given, output_bucket=capacity, trace=trace)
        while True:
            begun = time.perf_counter()
            state, status, result = loops.resume(
                loop, params, state, blocks, output_bucket=capacity, size=size
            )
            result, status = to_host((result, status))
            took = agreed(self.target.partitioning, time.perf_counter() - begun)
            blocks = max(1, min(2 * blocks, int(seconds / took * blocks)))
            self.check_result(batch, result)
            yield result, np.asarray(status.finished)
            if np.all(status.finished):
                return
            needed = loops.capacity(status)
            if needed > capacity:
                capacity = needed
                state = loops.resized(
                    loop, params, state, *given, output_bucket=capacity, trace=trace
                )

    def decode_all(
        self, batches: Iterable[Batch], *, trace: bool = False
    ) -> Iterator[tuple[Batch, R]]:
        """Decodes batches of as many rows each, in their order.

        While rows go on, others of the next batches take the places of those that have ended. Rows
        do not depend on it.

        Raises:
          ValueError: see :meth:`decode`.
        """
        batches = iter(batches)
        some = list(itertools.islice(batches, 2))
        size = len(some[0].row_ids) if some else 0
        every = itertools.chain(some, batches)
        if len(some) < 2 or size == ways(self.target.partitioning, "batch"):
            for batch in every:  # No row waits for another one.
                yield batch, self.decode(batch, trace=trace)
            return
        for batch, result in Refilled(self, size, trace).decode(every):
            self.check_result(batch, result)
            yield batch, result


def within(
    parts: Iterator[tuple[R, np.ndarray]], seconds: float | None,
    partitioning: Partitioning | None = None,
) -> Iterator[tuple[R, np.ndarray, bool]]:  # fmt: skip
    """Parts of a decode until the time is over; each with whether it is the last one for that.

    Args:
      seconds: from now on; None for any time. At least one part is given.
      partitioning: of the target; processes that share it end with the same part.
    """
    begun = time.monotonic()
    for result, finished in parts:
        over = seconds is not None and agreed(partitioning, time.monotonic() - begun >= seconds)
        yield result, finished, over and not np.all(finished)
        if over:
            return


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

    def check_result(self, batch: Batch, result: DecodeResult) -> None:
        source = f"{self.target.source} or of its draft"
        refuse_nan(batch, result.nan, result.num_tokens, source, self.rules)
        if result.stuck is not None:
            refuse_stuck(batch, result.stuck, result.num_tokens, self.rules)

    def check(self, batch: Batch, *, trace: bool = False) -> None:
        """Traces the program that decodes such a batch, without compiling it.

        Raises:
          ValueError: the verifier cannot verify what the drafter makes.
        """
        arguments = (self.engine, *self.arguments(batch))
        static = {"output_bucket": self.output_bucket, "trace": trace}
        loops.decode.jitted(*arguments, **static).eval_shape(*arguments, **static)
