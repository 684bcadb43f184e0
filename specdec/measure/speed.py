"""Speed of speculative decoding, compared with plain decoding in the same run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from specdec.core import theory
from specdec.core.stats import RunStats
from specdec.decoding.batch_decoder import BatchDecoder
from specdec.decoding.batches import Batch, commonest
from specdec.measure import costs
from specdec.measure.timing import Spread, Work, time_interleaved
from specdec.types import DecodeResult


@dataclasses.dataclass(frozen=True)
class Timings:
    """Raw measurements."""

    # For each repetition, by name: "autoregressive" and "speculative" are whole decodes of all
    # batches, "target_encode" and "draft_encode" what these do besides their blocks
    # (`start_seconds`); "target_step", "verify_step" and "draft_step" are of one step
    # (`step_seconds`).
    seconds: list[dict[str, float]]
    num_batches: int  # How many were timed.
    num_tokens: dict[str, int]  # Emitted in one repetition, by method.
    blocks: RunStats | None = None  # Of one repetition of speculative decoding.


@dataclasses.dataclass(frozen=True)
class Speed:
    """Measured times; the speculative part is None for a plain decoding run."""

    repetitions: int  # How often everything was measured.
    ms_per_token: dict[str, Spread]  # Whole decode, encoders included, by method.
    # Of a batch, what a decode does besides its blocks: "target" plain decoding, "draft" what a
    # drafter adds to it.
    encode_ms: dict[str, Spread]
    decoder_ms: Spread  # Of a batch, the steps of plain decoding.
    # Ratio of the two ms_per_token, repetition by repetition.
    measured_speedup: Spread | None = None
    measured_speedup_decoder: Spread | None = None  # The same without the encoders' time.
    cost_ratio: Spread | None = None  # c, draft step over target step.
    # v, a block without its draft over a step of plain decoding.
    verify_ratio: Spread | None = None
    blocks: RunStats | None = None  # Of the texts that were timed.


def measure(
    plain: BatchDecoder, fast: BatchDecoder | None, batches: Sequence[Batch], repetitions: int
) -> Timings:
    """Times the decodes of ``batches`` and their parts, all interleaved, after warm-up.

    Args:
      plain: plain decoding, which is always timed.
      fast: speculative decoding, timed with its parts; None for a plain decoding run.

    Raises:
      ValueError: there is no batch, or no repetition.
    """
    if not batches or repetitions < 1:
        raise ValueError("Measuring speed needs at least one batch and one repetition.")
    works, results = decode_works(plain, fast, batches)
    works += [work for batch in batches for work in costs.start_works(plain, fast, batch)]
    works += costs.step_works(plain, fast, commonest(batches)[0])
    times, number = time_interleaved(works, repetitions), len(batches)
    seconds = [each | costs.start_seconds(each, number) for each in times]
    if fast is not None:
        seconds = [each | costs.step_seconds(each, fast.engine.depth) for each in seconds]
    num_tokens = {method: sum_of_tokens(found) for method, found in results.items()}
    blocks = None
    if fast is not None:
        rows = sum(int(np.sum(batch.row_ids >= 0)) for batch in batches)
        counts = [result.stats for result in results["speculative"]]
        blocks = RunStats.total(counts, rows, fast.engine.depth)
    return Timings(seconds, number, num_tokens, blocks)


def decode_works(
    plain: BatchDecoder, fast: BatchDecoder | None, batches: Sequence[Batch]
) -> tuple[list[Work], dict[str, list[DecodeResult]]]:
    """Whole decodes of all batches by each method.

    Each method goes through all batches, as it does for its users: what a program finds in the
    processor's caches is what its own last run left there. Results come to the host.

    Returns:
      works named "autoregressive" and, with ``fast``, "speculative"; and by these names what each
      batch gave.
    """
    methods = {"autoregressive": plain} | ({} if fast is None else {"speculative": fast})
    works = [
        Work(name, functools.partial(decoder.decode, batch), batch.shape)
        for name, decoder in methods.items()
        for batch in batches
    ]
    results = {
        name: [decoder.decode(batch) for batch in batches] for name, decoder in methods.items()
    }
    return works, results


def sum_of_tokens(results: Sequence[DecodeResult]) -> int:
    """Tokens that decodes emitted."""
    return sum(int(np.sum(result.num_tokens)) for result in results)


def summarize(timings: Timings) -> Speed:
    """Medians and ranges; each ratio is taken within a repetition."""
    seconds, tokens = timings.seconds, timings.num_tokens
    speculative = "speculative" in tokens

    def spread(value: Callable[[dict[str, float]], float]) -> Spread:
        return Spread.of(map(value, seconds))

    def a_batch(value: Callable[[dict[str, float]], float]) -> Spread:
        return spread(lambda s: 1e3 * value(s) / timings.num_batches)

    def plain_decoder(s: dict[str, float]) -> float:
        return s["autoregressive"] - s["target_encode"]

    speed = Speed(
        repetitions=len(seconds),
        ms_per_token={m: spread(lambda s, m=m: 1e3 * s[m] / tokens[m]) for m in tokens},
        encode_ms={
            name: a_batch(lambda s, name=name: s[f"{name}_encode"])
            for name in ("target", "draft")[: 1 + speculative]
        },
        decoder_ms=a_batch(plain_decoder),
    )
    if not speculative:
        return speed
    # Methods that sample emit different texts: compare time a token.
    ratio = tokens["speculative"] / tokens["autoregressive"]

    def decoder(s: dict[str, float]) -> float:
        return s["speculative"] - s["target_encode"] - s["draft_encode"]

    return dataclasses.replace(
        speed,
        measured_speedup=spread(lambda s: s["autoregressive"] / s["speculative"] * ratio),
        measured_speedup_decoder=spread(lambda s: plain_decoder(s) / decoder(s) * ratio),
        cost_ratio=spread(lambda s: s["draft_step"] / s["target_step"]),
        verify_ratio=spread(lambda s: s["verify_step"] / s["target_step"]),
        blocks=timings.blocks,
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Prediction of theory from a measured alpha, c and v."""

    decoder: float  # expected_tokens / (gamma c + v), encoders left out.
    theorem_3_8: float  # The same with v = 1.
    whole: float  # ``decoder`` with the measured time of both encoders put back.
    # Tokens a block / (guesses a block * c + v) as they were counted in the texts that were timed.
    # Unlike the others it includes blocks that a row's end cuts short, of acceptances that are not
    # independent, and of a draft that stops. It leaves out that a batch waits for its slowest row.
    counted: float


def predict(stats: RunStats, speed: Speed) -> Prediction:
    """The speedup that acceptance and costs predict.

    A draft whose steps or whose encoder were measured to take less than no time (both are
    differences of times) takes none.

    Raises:
      ValueError: they are of a plain decoding run.
    """
    alpha, gamma, timed = stats.alpha, stats.gamma, speed.blocks
    if alpha is None or speed.cost_ratio is None or speed.verify_ratio is None or timed is None:
        raise ValueError("A plain decoding run has no speedup to predict.")
    c, v = max(0.0, speed.cost_ratio.median), speed.verify_ratio.median
    decoder = theory.speedup(alpha, gamma, c, v)
    target, draft = speed.encode_ms["target"].median, max(0.0, speed.encode_ms["draft"].median)
    plain = speed.decoder_ms.median
    return Prediction(
        decoder,
        theorem_3_8=theory.speedup(alpha, gamma, c),
        whole=(target + plain) / (target + draft + plain / decoder),
        # Of a tree, a step of the draft is a level.
        counted=theory.block_speedup(
            timed.emitted / timed.target_calls,
            min(timed.proposed / timed.target_calls, gamma),
            c,
            v,
        ),
    )
